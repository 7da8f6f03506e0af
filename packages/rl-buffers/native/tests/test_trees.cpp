// Priority trees, one behaviour at a time: numbers by hand, bad arguments, and a lock whose owner dies.
#include <cmath>
#include <limits>

#if !defined(_WIN32)
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "../shared_lock.h"
#include "tree_api.h"

using namespace testing;

namespace {

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

void numbers_by_hand() {
  TestTree tree(4);
  CHECK(tree.write(range(0, 4)) == 0);
  CHECK(tree.update({0, 1, 2, 3}, {0.25, 1.0, 4.0, 16.0}, nullptr, 0.5) == 4);
  double out[4];
  CHECK(rl_tree_stats(tree.memory, tree.words, out) == 4);
  CHECK(out[0] == 7.5 && out[1] == 0.5 && out[2] == 4.0 && out[3] == 4.0);
  Slots slots, generation;
  Reals weights;
  CHECK(tree.sample(15, 1, true, 1.0, slots, weights, generation) == 0);
  int count[4] = {};
  for (size_t i = 0; i < slots.size(); ++i) {
    ++count[slots[i]];
    CHECK(weights[i] == 1.0 / static_cast<double>(1 << slots[i]) && generation[i] == 1);
  }
  CHECK(count[0] == 1 && count[1] == 2 && count[2] == 4 && count[3] == 8);
}

void bad_arguments_change_nothing() {
  TestTree tree(10);
  CHECK(tree.write({10}) == rl_buffers::kIndexOutOfRange && tree.bad == 0);
  CHECK(tree.write({0, -1}) == rl_buffers::kIndexOutOfRange && tree.bad == 1);
  CHECK(tree.write({int64_t{1} << 62}) == rl_buffers::kIndexOutOfRange);
  Slots slots, generation;
  Reals weights;
  CHECK(tree.sample(3, 0, true, 1.0, slots, weights, generation) == rl_buffers::kNothingToDraw);
  CHECK(tree.write(range(0, 5)) == 0);
  for (double raw : {-1.0, kInf, -kInf, kNan}) {
    CHECK(tree.update({0, 1}, {7.0, raw}) == rl_buffers::kBadPriority && tree.bad == 1);
  }
  CHECK(tree.update({0, 5}, {7.0, 7.0}) == rl_buffers::kIndexOutOfRange && tree.bad == 1);
  CHECK(tree.update({0}, {1.0}, nullptr, kNan) == rl_buffers::kBadArgument);
  CHECK(tree.update({0}, {1.0}, nullptr, -1.0) == rl_buffers::kBadArgument);
  double out[4];
  CHECK(rl_tree_stats(tree.memory, tree.words, out) == 5 && out[0] == 5.0);
  CHECK(rl_tree_stats(nullptr, tree.words, out) == rl_buffers::kBadArgument);
  CHECK(rl_tree_stats(tree.memory, tree.words - 1, out) == rl_buffers::kBadArgument);
  CHECK(rl_tree_words(0) == 0 && rl_tree_words(-3) == 0 && rl_tree_words(std::numeric_limits<int64_t>::max()) == 0);
  tree.memory[rl_buffers::kFormatWord] = 0;
  CHECK(rl_tree_stats(tree.memory, tree.words, out) == rl_buffers::kBadArgument);
}

void extreme_priorities_stay_finite_and_drawable() {
  TestTree tree(20);
  CHECK(tree.write(range(0, 20)) == 0);
  Reals raw(20, 1e-300);
  raw[3] = std::numeric_limits<double>::max();
  CHECK(tree.update(range(0, 20), raw, nullptr, 3.0) == 20);
  double out[4];
  rl_tree_stats(tree.memory, tree.words, out);
  CHECK(std::isfinite(out[0]) && out[1] == rl_buffers::kSmallest && out[2] == rl_buffers::kLargest);
  Slots slots, generation;
  Reals weights;
  CHECK(tree.sample(100, 5, true, 0.5, slots, weights, generation) == 0);
  for (size_t i = 0; i < slots.size(); ++i) CHECK(slots[i] == 3 && weights[i] >= 0.0 && weights[i] <= 1.0);
}

void a_draw_never_ends_on_a_zero_leaf() {
  for (int64_t round = 0; round < 50; ++round) {
    TestTree tree(500);
    CHECK(tree.write(range(0, 100)) == 0);
    Reals raw;
    for (int64_t slot = 0; slot < 100; ++slot) {
      const double noise = std::fmod(0.618033988749895 * static_cast<double>(slot * 37 + round * 11), 1.0);
      raw.push_back((slot * 7 + round) % 10 < 3 ? 0.0 : noise + 1e-8);
    }
    CHECK(tree.update(range(0, 100), raw) == 100);
    Slots slots, generation;
    Reals weights;
    CHECK(tree.sample(20000, round, round % 2 == 0, 1.0, slots, weights, generation) == 0);
    for (int64_t slot : slots) CHECK(slot >= 0 && slot < 100 && raw[static_cast<size_t>(slot)] > 0.0);
  }
}

void many_scattered_slots_all_reach_the_sums() {
  TestTree tree(50000);
  CHECK(tree.write(range(0, 50000)) == 0);
  CHECK(tree.update({49999}, {5.0}) == 1);
  Slots scattered;
  for (int64_t k = 0; k < 1500; ++k) scattered.push_back((k * 7919) % 49999);
  CHECK(tree.write(scattered) == 0);
  double out[4];
  CHECK(rl_tree_stats(tree.memory, tree.words, out) == 50000 && out[0] == 48499.0 + 5.0 * 1501 && out[1] == 1.0);
  CHECK(tree.update(scattered, Reals(1500, 2.0)) == 1500);
  CHECK(rl_tree_stats(tree.memory, tree.words, out) == 50000 && out[0] == 48499.0 + 2.0 * 1500 + 5.0);
}

void masses_at_the_edges_end_on_rows_above_zero() {
  TestTree memory(600);
  CHECK(memory.write(range(0, 600)) == 0);
  Reals raw(600, 0.0);
  raw[77] = 0.1;
  raw[300] = 0.7;
  raw[505] = 0.2;
  CHECK(memory.update(range(0, 600), raw) == 600);
  rl_buffers::Tree tree;
  CHECK(tree.open(memory.memory, memory.words));
  const double sum = tree.sum();
  Reals masses = {0.0, 5e-324, std::nextafter(sum, 0.0), sum, 2 * sum, kInf};
  Slots slots(6);
  tree.descend(6, masses.data(), slots.data());
  CHECK((slots == Slots{77, 77, 505, 505, 505, 505}));
}

#if !defined(_WIN32)
void the_lock_of_a_dead_process_is_taken_over() {
  const int64_t words = rl_tree_words(100);
  const size_t bytes = static_cast<size_t>(words) * sizeof(int64_t);
  auto* memory = static_cast<int64_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(memory != MAP_FAILED);
  format(memory, 100);
  const Slots slots = range(0, 100);
  int64_t bad = 0;
  CHECK(rl_tree_write(memory, words, 100, slots.data(), 1.0, 0.0, 1, &bad) == 0);
  const pid_t child = fork();
  if (child == 0) {  // dies in the middle of an update: a leaf is new, the sums are old
    new rl_buffers::SharedLock(memory + rl_buffers::kLockWord);
    rl_buffers::Tree tree;
    tree.open(memory, words);
    tree.leaf(7) = 901.0;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(memory[rl_buffers::kLockWord] == child);
  double out[4];
  CHECK(rl_tree_stats(memory, words, out) == 100 && out[0] == 1000.0 && out[2] == 901.0);
  CHECK(memory[rl_buffers::kLockWord] == 0);
  munmap(memory, bytes);
}
#endif

void a_lock_that_stays_taken_times_out() {
  int64_t word = rl_buffers::own_process();
  rl_buffers::SharedLock lock(&word, std::chrono::milliseconds(1), std::chrono::milliseconds(5));
  CHECK(!lock.held());
}

}  // namespace

int main() {
  numbers_by_hand();
  bad_arguments_change_nothing();
  extreme_priorities_stay_finite_and_drawable();
  a_draw_never_ends_on_a_zero_leaf();
  many_scattered_slots_all_reach_the_sums();
  masses_at_the_edges_end_on_rows_above_zero();
  a_lock_that_stays_taken_times_out();
#if !defined(_WIN32)
  the_lock_of_a_dead_process_is_taken_over();
#endif
  std::puts("test_trees: ok");
}
