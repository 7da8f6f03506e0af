// The nodes of the priority tree: how they are laid out, brought up to date and descended.
#include <cstdint>
#include <limits>

#include "trees.h"

namespace rl_buffers {

namespace {

using std::int64_t;
using std::uint64_t;

#if defined(__GNUC__)
inline void prefetch(const void* address) { __builtin_prefetch(address, 1, 2); }
#else
inline void prefetch(const void*) {}
#endif

// A fixed order of additions: the twin in Python adds in the same one, so that sums are equal to the last bit.
inline double sum8(const double* x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

inline double min8(const double* x) {
  double least = std::numeric_limits<double>::infinity();
  for (int c = 0; c < kFan; ++c) least = x[c] > 0 && x[c] < least ? x[c] : least;
  return least == std::numeric_limits<double>::infinity() ? 0.0 : least;
}

inline double max8(const double* x) {
  double most = x[0];
  for (int c = 1; c < kFan; ++c) most = x[c] > most ? x[c] : most;
  return most;
}

inline int64_t ceil8(int64_t n) { return (n + kFan - 1) / kFan; }

// Rows handled at a time with lists on the stack.
constexpr int64_t kChunk = 512;

// Levels of at most this many blocks get a bitmap of those that were seen; above, few blocks come twice.
constexpr int64_t kBitmap = 32768;

// Drops blocks that come twice; in large levels only those that follow one another.
int64_t dedupe(int64_t* block, int64_t n, int64_t blocks) {
  int64_t kept = 0;
  if (blocks > kBitmap) {
    for (int64_t k = 0; k < n; ++k) {
      if (kept == 0 || block[kept - 1] != block[k]) block[kept++] = block[k];
    }
    return kept;
  }
  uint64_t seen[kBitmap / 64];
  for (int64_t w = 0; w < (blocks + 63) / 64; ++w) seen[w] = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t b = block[k];
    const uint64_t bit = uint64_t{1} << (b & 63);
    if (seen[b >> 6] & bit) continue;
    seen[b >> 6] |= bit;
    block[kept++] = b;
  }
  return kept;
}

}  // namespace

int64_t tree_words(int64_t capacity) {
  if (capacity < 1 || capacity > kMaxCapacity) return 0;
  int64_t blocks = ceil8(capacity);
  int64_t words = kHeaderWords + blocks * kLeafWords;
  do {
    blocks = ceil8(blocks);
    words += blocks * kNodeWords;
  } while (blocks > 1);
  return words;
}

bool Tree::open(int64_t* memory, int64_t words) {
  if (!memory || words < kHeaderWords || memory[kFormatWord] != kTreeFormat) return false;
  memory_ = memory;
  if (tree_words(capacity()) != words) return false;
  double* next = reinterpret_cast<double*>(memory + kHeaderWords);
  level_[0] = next;
  blocks_[0] = ceil8(capacity());
  next += blocks_[0] * kLeafWords;
  top_ = 0;
  do {
    ++top_;
    level_[top_] = next;
    blocks_[top_] = ceil8(blocks_[top_ - 1]);
    next += blocks_[top_] * kNodeWords;
  } while (blocks_[top_] > 1);
  return true;
}

double Tree::sum() const { return sum8(level_[top_]); }
double Tree::min() const { return min8(level_[top_] + kFan); }
double Tree::max() const { return max8(level_[top_] + 2 * kFan); }

void Tree::refresh(int level, int64_t block) {
  double* above = level_[level + 1] + (block >> 3) * kNodeWords + (block & 7);
  if (level == 0) {
    const double* below = level_[0] + block * kLeafWords;
    above[0] = sum8(below);
    above[kFan] = min8(below);
    above[2 * kFan] = max8(below);
    return;
  }
  const double* below = level_[level] + block * kNodeWords;
  above[0] = sum8(below);
  above[kFan] = min8(below + kFan);
  above[2 * kFan] = max8(below + 2 * kFan);
}

void Tree::refresh_blocks(int64_t* block, int64_t n) {
  for (int level = 0; level < top_; ++level) {
    n = dedupe(block, n, blocks_[level]);
    for (int64_t k = 0; k < n; ++k) {
      refresh(level, block[k]);
      block[k] >>= 3;
    }
  }
}

void Tree::refresh_range(int64_t first_slot, int64_t last_slot) {
  int64_t first = first_slot >> 3, last = last_slot >> 3;
  for (int level = 0; level < top_; ++level) {
    for (int64_t block = first; block <= last; ++block) refresh(level, block);
    first >>= 3;
    last >>= 3;
  }
}

void Tree::rebuild() {
  if (live() > 0) refresh_range(0, live() - 1);
}

void Tree::refresh_slots(const int64_t* index, int64_t n) {
  int64_t runs = 0;
  for (int64_t k = 0; k < n; ++k) runs += k == 0 || index[k] != index[k - 1] + 1;
  if (runs <= 2 || runs * 16 <= n) {  // what a ring writes: one range, or two around its end
    for (int64_t start = 0, k = 1; k <= n; ++k) {
      if (k < n && index[k] == index[k - 1] + 1) continue;
      refresh_range(index[start], index[k - 1]);
      start = k;
    }
    return;
  }
  if (n >= live() / 4) return rebuild();
  int64_t block[kChunk];
  for (int64_t start = 0; start < n; start += kChunk) {
    const int64_t size = n - start < kChunk ? n - start : kChunk;
    for (int64_t k = 0; k < size; ++k) block[k] = index[start + k] >> 3;
    refresh_blocks(block, size);
  }
}

// Level by level for all masses at once, so that the cache misses of one level overlap.
void Tree::descend(int64_t n, double* mass, int64_t* slot) {
  for (int64_t i = 0; i < n; ++i) slot[i] = 0;
  for (int level = top_; level >= 0; --level) {
    const int64_t stride = level == 0 ? kLeafWords : kNodeWords;
    for (int64_t i = 0; i < n; ++i) {
      const double* below = level_[level] + slot[i] * stride;
      double left = mass[i];
      int64_t last = 0, child = 0;  // only children above zero are ever chosen
      for (; child < kFan; ++child) {
        if (left < below[child]) break;
        if (below[child] > 0) last = child;
        left -= below[child];
      }
      if (child == kFan) {  // sums are rounded: the mass may end just behind the last child
        child = last;
        left = std::numeric_limits<double>::infinity();
      }
      mass[i] = left;
      slot[i] = slot[i] * kFan + child;
      if (level == 1) {
        prefetch(level_[0] + slot[i] * kLeafWords);
        prefetch(level_[0] + slot[i] * kLeafWords + kFan);
      } else if (level > 1) {
        prefetch(level_[level - 1] + slot[i] * kNodeWords);
      }
    }
  }
}

}  // namespace rl_buffers
