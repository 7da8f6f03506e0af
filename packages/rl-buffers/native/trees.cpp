// Prioritised replay: writes, priority updates and draws on a priority tree, each a locked step.
#include "trees.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "abi.h"
#include "shared_lock.h"

namespace {

using rl_buffers::kFan;
using rl_buffers::Tree;
using std::int64_t;
using std::uint64_t;

// SplitMix64 (Steele, Lea & Flood 2014) as a function of a counter; the twin computes the same numbers.
inline uint64_t random_word(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline double uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(random_word(seed, counter) >> 11) * 0x1p-53;
}

// The one place where a raw priority becomes a stored one: (raw + eps)^alpha.
inline double stored(double raw, double alpha, double eps) {
  const double base = raw + eps;
  if (base == 0 && alpha > 0) return 0.0;
  const double value = std::pow(base, alpha);
  return value < rl_buffers::kSmallest ? rl_buffers::kSmallest : value > rl_buffers::kLargest ? rl_buffers::kLargest : value;
}

// Masses of n draws, in `mass`; `slot` is scratch. Stratified draws take one point of each n-th of the sum, in random
// order, so that any part of a batch is a fair sample.
void draw_masses(int64_t n, uint64_t seed, bool stratified, double sum, double* mass, int64_t* slot) {
  if (!stratified) {
    for (int64_t i = 0; i < n; ++i) mass[i] = uniform(seed, static_cast<uint64_t>(i)) * sum;
    return;
  }
  for (int64_t i = 0; i < n; ++i) slot[i] = i;
  for (int64_t i = n - 1; i > 0; --i) {
    const uint64_t word = random_word(seed, static_cast<uint64_t>(n + i)) >> 32;
    const int64_t j = static_cast<int64_t>((word * static_cast<uint64_t>(i + 1)) >> 32);
    const int64_t kept = slot[i];
    slot[i] = slot[j];
    slot[j] = kept;
  }
  const double step = sum / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    mass[i] = (static_cast<double>(slot[i]) + uniform(seed, static_cast<uint64_t>(i))) * step;
  }
}

int64_t check_slots(int64_t n, const int64_t* index, int64_t end, int64_t* bad) {
  for (int64_t k = 0; k < n; ++k) {
    if (index[k] < 0 || index[k] >= end) {
      *bad = k;
      return rl_buffers::kIndexOutOfRange;
    }
  }
  return rl_buffers::kOk;
}

}  // namespace

// Opens the tree and takes its lock; after the death of a process that held it, the nodes are rebuilt.
#define RL_LOCKED_TREE(tree, memory, words)                            \
  Tree tree;                                                           \
  if (!tree.open(memory, words)) return rl_buffers::kBadArgument;      \
  rl_buffers::SharedLock lock(memory + rl_buffers::kLockWord);         \
  if (!lock.held()) return rl_buffers::kLockTimeout;                   \
  if (!tree.sound()) return rl_buffers::kBadTree;                      \
  if (lock.recovered()) tree.rebuild()

// The words that a tree of this capacity takes, 0 for an impossible capacity.
RL_EXPORT int64_t rl_tree_words(int64_t capacity) { return rl_buffers::tree_words(capacity); }

// New rows were written to slots index[0 .. n): each gets the largest stored priority of the other live rows (`within`),
// or the largest ever set, or that of a raw 1 where there is none; their generations go up by one.
RL_EXPORT int64_t rl_tree_write(int64_t* memory, int64_t words, int64_t n, const int64_t* index, double alpha, double eps,
                                int64_t within, int64_t* bad) {
  if (n < 0 || (n > 0 && !index) || !bad || !(alpha >= 0) || !(eps >= 0)) return rl_buffers::kBadArgument;
  RL_LOCKED_TREE(tree, memory, words);
  const int64_t code = check_slots(n, index, tree.capacity(), bad);
  if (code != rl_buffers::kOk || n == 0) return code;
  int64_t live = tree.live();
  for (int64_t k = 0; k < n; ++k) live = index[k] >= live ? index[k] + 1 : live;
  tree.set_live(live);
  double value = within ? tree.max() : tree.largest_ever();
  if (within && value > 0) {
    bool replaced = false;  // whether the row with the largest priority is among those that are gone
    for (int64_t k = 0; k < n && !replaced; ++k) replaced = tree.leaf(index[k]) == value;
    if (replaced) {
      for (int64_t k = 0; k < n; ++k) tree.leaf(index[k]) = 0.0;
      tree.refresh_slots(index, n);
      value = tree.max();
    }
  }
  if (!(value > 0)) value = stored(1.0, alpha, eps);
  for (int64_t k = 0; k < n; ++k) {
    tree.leaf(index[k]) = value;
    ++tree.generation(index[k]);
  }
  tree.refresh_slots(index, n);
  return rl_buffers::kOk;
}

// Sets the stored priorities of slots to (raw + eps)^alpha, in order, so that the last of equal slots wins.
//
// Negative slots are skipped. With `generation` (may be null), so are rows that were overwritten since, or are gone.
// Everything is checked before anything is changed; the first bad position goes to *bad. Returns the number of rows set.
RL_EXPORT int64_t rl_tree_update(int64_t* memory, int64_t words, int64_t n, const int64_t* index, const double* raw,
                                 const int64_t* generation, double alpha, double eps, int64_t* bad) {
  if (n < 0 || (n > 0 && (!index || !raw)) || !bad || !(alpha >= 0) || !(eps >= 0)) return rl_buffers::kBadArgument;
  RL_LOCKED_TREE(tree, memory, words);
  const int64_t end = generation ? tree.capacity() : tree.live();
  for (int64_t k = 0; k < n; ++k) {
    if (index[k] < 0) continue;
    *bad = k;
    if (index[k] >= end) return rl_buffers::kIndexOutOfRange;
    if (!(raw[k] >= 0) || raw[k] > std::numeric_limits<double>::max()) return rl_buffers::kBadPriority;
#if defined(__GNUC__)
    __builtin_prefetch(&tree.leaf(index[k]), 1, 2);
    __builtin_prefetch(&tree.generation(index[k]), 0, 2);
#endif
  }
  // Rows are set and their nodes brought up to date in parts, each with a list of slots on the stack.
  constexpr int64_t kPart = 512;
  int64_t slots[kPart], set = 0;
  const bool many = n >= tree.live() / 4;
  double largest = tree.largest_ever();
  for (int64_t start = 0; start < n; start += kPart) {
    int64_t part = 0;
    for (int64_t k = start; k < n && k < start + kPart; ++k) {
      const int64_t slot = index[k];
      if (slot < 0 || (generation && (slot >= tree.live() || tree.generation(slot) != generation[k]))) continue;
      const double value = stored(raw[k], alpha, eps);
      tree.leaf(slot) = value;
      largest = value > largest ? value : largest;
      slots[part++] = slot;
    }
    if (!many) tree.refresh_slots(slots, part);
    set += part;
  }
  if (many && set > 0) tree.rebuild();
  tree.largest_ever() = largest;
  return set;
}

// Draws n slots in proportion to their stored priorities, with weights (p / smallest p)^-beta, at most 1.
//
// index, weight, generation: n places each; weight32 (may be null): the weights in single precision.
RL_EXPORT int64_t rl_tree_sample(int64_t* memory, int64_t words, int64_t n, int64_t seed, int64_t stratified, double beta,
                                 int64_t* index, double* weight, float* weight32, int64_t* generation) {
  if (n < 0 || n >= (int64_t{1} << 32) || (n > 0 && (!index || !weight || !generation)) || !(beta >= 0)) {
    return rl_buffers::kBadArgument;
  }
  RL_LOCKED_TREE(tree, memory, words);
  const double sum = tree.sum(), smallest = tree.min();
  if (!(sum > 0)) return rl_buffers::kNothingToDraw;
  draw_masses(n, static_cast<uint64_t>(seed), stratified != 0, sum, weight, index);
  tree.descend(n, weight, index);
  for (int64_t i = 0; i < n; ++i) {
    const double priority = tree.leaf(index[i]);
    if (!(priority > 0)) return rl_buffers::kBadTree;
    weight[i] = std::pow(priority / smallest, -beta);
    generation[i] = tree.generation(index[i]);
  }
  if (weight32) {
    for (int64_t i = 0; i < n; ++i) weight32[i] = static_cast<float>(weight[i]);
  }
  return rl_buffers::kOk;
}

// Sum, smallest, largest and largest ever stored priority, into out[0 .. 4). Returns the number of live slots.
RL_EXPORT int64_t rl_tree_stats(int64_t* memory, int64_t words, double* out) {
  if (!out) return rl_buffers::kBadArgument;
  RL_LOCKED_TREE(tree, memory, words);
  out[0] = tree.sum();
  out[1] = tree.min();
  out[2] = tree.max();
  out[3] = tree.largest_ever();
  return tree.live();
}

// Copies stored priorities and generations of the first n slots out, or of all live ones; returns how many it copied.
RL_EXPORT int64_t rl_tree_read(int64_t* memory, int64_t words, int64_t n, double* priority, int64_t* generation) {
  if (n < 0 || (n > 0 && (!priority || !generation))) return rl_buffers::kBadArgument;
  RL_LOCKED_TREE(tree, memory, words);
  if (n > tree.live()) n = tree.live();
  for (int64_t slot = 0; slot < n; ++slot) {
    priority[slot] = tree.leaf(slot);
    generation[slot] = tree.generation(slot);
  }
  return n;
}

// Forgets all rows; generations stay, so that samples of the rows that are gone remain out of date.
RL_EXPORT int64_t rl_tree_clear(int64_t* memory, int64_t words) {
  RL_LOCKED_TREE(tree, memory, words);
  for (int64_t slot = 0; slot < tree.live(); ++slot) tree.leaf(slot) = 0.0;
  tree.rebuild();
  tree.set_live(0);
  tree.largest_ever() = 0.0;
  return rl_buffers::kOk;
}

// Replaces all rows by n rows with these stored priorities and generations.
RL_EXPORT int64_t rl_tree_load(int64_t* memory, int64_t words, int64_t n, const double* priority,
                               const int64_t* generation, double largest_ever, int64_t* bad) {
  if (n < 0 || (n > 0 && (!priority || !generation)) || !bad) return rl_buffers::kBadArgument;
  RL_LOCKED_TREE(tree, memory, words);
  if (n > tree.capacity()) return rl_buffers::kIndexOutOfRange;
  for (int64_t slot = 0; slot < n; ++slot) {
    *bad = slot;
    if (!(priority[slot] >= 0) || priority[slot] > rl_buffers::kLargest) return rl_buffers::kBadPriority;
  }
  const int64_t before = tree.live();
  for (int64_t slot = 0; slot < n; ++slot) {
    tree.leaf(slot) = priority[slot];
    tree.generation(slot) = generation[slot];
  }
  for (int64_t slot = n; slot < before; ++slot) tree.leaf(slot) = 0.0;
  tree.set_live(n > before ? n : before);
  tree.rebuild();
  tree.set_live(n);
  tree.largest_ever() = largest_ever;
  return rl_buffers::kOk;
}
