// Random operations on priority trees of random sizes, each compared with a model that has neither nodes nor lock.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tree_api.h"

using namespace testing;

namespace {

struct Model {
  Reals priority;
  Slots generation;
  int64_t live = 0;
  double largest_ever = 0.0;

  explicit Model(int64_t capacity) : priority(static_cast<size_t>(capacity)), generation(priority.size()) {}

  void write(const Slots& slots, bool within) {
    for (int64_t slot : slots) live = std::max(live, slot + 1);
    double value = largest_ever;
    if (within) {
      Reals others = priority;
      for (int64_t slot : slots) others[static_cast<size_t>(slot)] = 0.0;
      value = *std::max_element(others.begin(), others.end());
    }
    for (int64_t slot : slots) {
      priority[static_cast<size_t>(slot)] = value > 0 ? value : 1.0;
      ++generation[static_cast<size_t>(slot)];
    }
  }

  int64_t update(const Slots& slots, const Reals& raw, const Slots* seen) {
    int64_t set = 0;
    for (size_t k = 0; k < slots.size(); ++k) {
      if (slots[k] < 0) continue;
      const size_t slot = static_cast<size_t>(slots[k]);
      if (seen && (slots[k] >= live || generation[slot] != (*seen)[k])) continue;
      priority[slot] = raw[k];
      largest_ever = std::max(largest_ever, raw[k]);
      ++set;
    }
    return set;
  }
};

class Fuzz {
 public:
  explicit Fuzz(uint64_t seed) : random_(seed), capacity_(pick(1, pick(0, 9) == 0 ? 300000 : 700)), tree_(capacity_), model_(capacity_) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      switch (pick(0, 9)) {
        case 0: case 1: case 2: write(); break;
        case 3: case 4: case 5: update(); break;
        case 6: case 7: sample(); break;
        case 8: reload(); break;
        default: if (pick(0, 5) == 0) clear();
      }
      compare();
    }
  }

 private:
  int64_t pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  double priority() {
    switch (pick(0, 7)) {
      case 0: return 0.0;
      case 1: return 1e-200;
      case 2: return 1e9;
      default: return std::uniform_real_distribution<double>(1e-9, 10.0)(random_);
    }
  }

  void write() {  // a stretch of a ring, filled without gaps, or some filled slots
    Slots slots;
    if (pick(0, 1) == 0 || model_.live == 0) {
      const int64_t first = pick(0, model_.live == capacity_ ? capacity_ - 1 : model_.live);
      const int64_t n = pick(0, std::min<int64_t>(capacity_, 2000));
      for (int64_t k = 0; k < n; ++k) slots.push_back((first + k) % capacity_);
    } else {
      for (int64_t k = pick(0, pick(0, 3) == 0 ? 1500 : 20); k > 0; --k) slots.push_back(pick(0, model_.live - 1));
    }
    const bool within = pick(0, 3) > 0;
    CHECK(tree_.write(slots, within) == 0);
    model_.write(slots, within);
  }

  void update() {
    if (model_.live == 0) return;
    Slots slots, seen;
    Reals raw;
    const bool checked = pick(0, 1) == 0;
    for (int64_t k = pick(0, pick(0, 4) == 0 ? 3000 : 40); k > 0; --k) {
      const int64_t slot = pick(0, 9) == 0 ? -pick(1, 5) : pick(0, checked ? capacity_ - 1 : model_.live - 1);
      slots.push_back(slot);
      seen.push_back(slot < 0 ? 0 : model_.generation[static_cast<size_t>(slot)] - (pick(0, 3) == 0));
      raw.push_back(priority());
    }
    const Slots* generation = checked ? &seen : nullptr;
    CHECK(tree_.update(slots, raw, generation) == model_.update(slots, raw, generation));
  }

  void sample() {
    Slots slots, generation;
    Reals weights;
    const int64_t n = pick(0, 600);
    const int64_t code = tree_.sample(n, pick(0, INT64_MAX), pick(0, 1), 0.5, slots, weights, generation);
    double smallest = INFINITY;
    for (double p : model_.priority) smallest = p > 0 ? std::min(smallest, p) : smallest;
    if (std::isinf(smallest)) {
      CHECK(code == rl_buffers::kNothingToDraw);
      return;
    }
    CHECK(code == 0);
    for (size_t i = 0; i < slots.size(); ++i) {
      CHECK(slots[i] >= 0 && slots[i] < model_.live);
      const size_t slot = static_cast<size_t>(slots[i]);
      CHECK(model_.priority[slot] > 0 && generation[i] == model_.generation[slot]);
      CHECK(weights[i] == std::pow(model_.priority[slot] / smallest, -0.5));
    }
  }

  void clear() {
    CHECK(rl_tree_clear(tree_.memory, tree_.words) == 0);
    std::fill(model_.priority.begin(), model_.priority.end(), 0.0);
    model_.live = 0;
    model_.largest_ever = 0.0;
  }

  void reload() {
    const int64_t n = pick(0, model_.live);
    CHECK(rl_tree_load(tree_.memory, tree_.words, n, model_.priority.data(), model_.generation.data(), 3.0, &tree_.bad) == 0);
    std::fill(model_.priority.begin() + n, model_.priority.end(), 0.0);
    model_.live = n;
    model_.largest_ever = 3.0;
  }

  void compare() {
    double out[4];
    CHECK(rl_tree_stats(tree_.memory, tree_.words, out) == model_.live);
    double sum = 0.0, smallest = 0.0, largest = 0.0;
    for (double p : model_.priority) {
      sum += p;
      largest = std::max(largest, p);
      if (p > 0 && (smallest == 0 || p < smallest)) smallest = p;
    }
    CHECK(std::abs(out[0] - sum) <= 1e-9 * sum);
    CHECK(out[1] == smallest && out[2] == largest && out[3] == model_.largest_ever);
    Reals priority(model_.priority.size() + 1);
    Slots generation(priority.size());
    CHECK(rl_tree_read(tree_.memory, tree_.words, capacity_, priority.data(), generation.data()) == model_.live);
    for (int64_t slot = 0; slot < model_.live; ++slot) {
      const size_t k = static_cast<size_t>(slot);
      CHECK(priority[k] == model_.priority[k] && generation[k] == model_.generation[k]);
    }
  }

  std::mt19937_64 random_;
  int64_t capacity_;
  TestTree tree_;
  Model model_;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 200;
  for (int round = 0; round < rounds; ++round) Fuzz(static_cast<uint64_t>(round)).run(120);
  std::printf("fuzz_trees: ok, %d rounds\n", rounds);
}
