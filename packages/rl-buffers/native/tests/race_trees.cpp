// Threads that write, update, draw and read one priority tree at the same time; for ThreadSanitizer.
#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "tree_api.h"

using namespace testing;

namespace {

constexpr int64_t kCapacity = 5000, kBatch = 64;
constexpr int kRounds = 400;

void writer(TestTree* tree, uint64_t seed) {
  std::mt19937_64 random(seed);
  int64_t bad = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t first = static_cast<int64_t>(random() % kCapacity);
    Slots slots;
    for (int64_t k = 0; k < 100; ++k) slots.push_back((first + k) % kCapacity);
    CHECK(rl_tree_write(tree->memory, tree->words, 100, slots.data(), 1.0, 0.0, 1, &bad) == 0);
  }
}

void learner(TestTree* tree, uint64_t seed, std::atomic<int64_t>* updated) {
  std::mt19937_64 random(seed);
  Slots slots(kBatch), generation(kBatch);
  Reals weights(kBatch), raw(kBatch);
  int64_t bad = 0;
  for (int round = 0; round < kRounds; ++round) {
    CHECK(rl_tree_sample(tree->memory, tree->words, kBatch, static_cast<int64_t>(random() >> 1), round % 2, 0.7, slots.data(),
                         weights.data(), nullptr, generation.data()) == 0);
    for (int64_t k = 0; k < kBatch; ++k) {
      const size_t i = static_cast<size_t>(k);
      CHECK(slots[i] >= 0 && slots[i] < kCapacity && weights[i] > 0.0 && weights[i] <= 1.0);
      raw[i] = static_cast<double>(random() % 1000 + 1) / 100.0;
    }
    const int64_t set = rl_tree_update(tree->memory, tree->words, kBatch, slots.data(), raw.data(), generation.data(), 1.0,
                                       0.0, &bad);
    CHECK(set >= 0 && set <= kBatch);
    *updated += set;
  }
}

void reader(TestTree* tree) {
  Reals priority(kCapacity);
  Slots generation(kCapacity);
  double out[4];
  for (int round = 0; round < kRounds / 4; ++round) {
    CHECK(rl_tree_stats(tree->memory, tree->words, out) == kCapacity && out[0] > 0.0 && out[1] > 0.0);
    CHECK(rl_tree_read(tree->memory, tree->words, kCapacity, priority.data(), generation.data()) == kCapacity);
  }
}

}  // namespace

int main() {
  TestTree tree(kCapacity);
  CHECK(tree.write(range(0, kCapacity)) == 0);
  std::atomic<int64_t> updated{0};
  std::vector<std::thread> threads;
  for (uint64_t k = 0; k < 2; ++k) {
    threads.emplace_back(writer, &tree, k);
    threads.emplace_back(learner, &tree, 100 + k, &updated);
  }
  threads.emplace_back(reader, &tree);
  for (std::thread& thread : threads) thread.join();
  CHECK(updated > 0);
  Reals priority(kCapacity);
  Slots generation(kCapacity);
  CHECK(rl_tree_read(tree.memory, tree.words, kCapacity, priority.data(), generation.data()) == kCapacity);
  double sum = 0.0, out[4];
  int64_t written = 0;
  for (double p : priority) sum += p;
  for (int64_t g : generation) written += g;
  rl_tree_stats(tree.memory, tree.words, out);
  CHECK(std::abs(out[0] - sum) <= 1e-9 * sum);
  CHECK(written == kCapacity + 2 * kRounds * 100);
  std::puts("race_trees: ok");
}
