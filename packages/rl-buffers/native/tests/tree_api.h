// What the test programs share: the kernels' declarations, a tree in memory of its exact size, and a check.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../abi.h"
#include "../trees.h"

extern "C" {
std::int64_t rl_tree_words(std::int64_t capacity);
std::int64_t rl_tree_write(std::int64_t*, std::int64_t, std::int64_t, const std::int64_t*, double, double, std::int64_t,
                           std::int64_t*);
std::int64_t rl_tree_update(std::int64_t*, std::int64_t, std::int64_t, const std::int64_t*, const double*,
                            const std::int64_t*, double, double, std::int64_t*);
std::int64_t rl_tree_sample(std::int64_t*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, double, std::int64_t*,
                            double*, float*, std::int64_t*);
std::int64_t rl_tree_stats(std::int64_t*, std::int64_t, double*);
std::int64_t rl_tree_read(std::int64_t*, std::int64_t, std::int64_t, double*, std::int64_t*);
std::int64_t rl_tree_clear(std::int64_t*, std::int64_t);
std::int64_t rl_tree_load(std::int64_t*, std::int64_t, std::int64_t, const double*, const std::int64_t*, double,
                          std::int64_t*);
}

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
      std::abort();                                                                   \
    }                                                                                 \
  } while (0)

namespace testing {

using std::int64_t;
using Slots = std::vector<int64_t>;
using Reals = std::vector<double>;

inline void format(int64_t* memory, int64_t capacity) {
  memory[rl_buffers::kFormatWord] = rl_buffers::kTreeFormat;
  memory[rl_buffers::kCapacityWord] = capacity;
}

struct TestTree {
  std::vector<int64_t> own;
  int64_t* memory;
  int64_t words;
  int64_t bad = -1;

  explicit TestTree(int64_t capacity) : own(static_cast<size_t>(rl_tree_words(capacity))), memory(own.data()) {
    words = static_cast<int64_t>(own.size());
    format(memory, capacity);
  }

  int64_t write(const Slots& slots, bool within = true, double alpha = 1.0, double eps = 0.0) {
    return rl_tree_write(memory, words, size(slots), slots.data(), alpha, eps, within, &bad);
  }
  int64_t update(const Slots& slots, const Reals& raw, const Slots* generation = nullptr, double alpha = 1.0,
                 double eps = 0.0) {
    return rl_tree_update(memory, words, size(slots), slots.data(), raw.data(), generation ? generation->data() : nullptr,
                          alpha, eps, &bad);
  }
  int64_t sample(int64_t n, int64_t seed, bool stratified, double beta, Slots& slots, Reals& weights, Slots& generation) {
    slots.assign(static_cast<size_t>(n), -7);
    generation = slots;
    weights.assign(static_cast<size_t>(n), -7.0);
    std::vector<float> single(static_cast<size_t>(n));
    return rl_tree_sample(memory, words, n, seed, stratified, beta, slots.data(), weights.data(), single.data(),
                          generation.data());
  }
  static int64_t size(const Slots& slots) { return static_cast<int64_t>(slots.size()); }
};

inline Slots range(int64_t first, int64_t last) {
  Slots slots;
  for (int64_t slot = first; slot < last; ++slot) slots.push_back(slot);
  return slots;
}

}  // namespace testing
