// The priority tree: for each slot a priority and a generation, above them sums, minima and maxima, eight to a node.
//
// All of it lies in one block of 64-bit words, so that it can be shared between processes:
//
//   header     16 words   lock, format, capacity, live slots, largest priority ever
//   level 0    blocks of 16 words: 8 priorities (double), 8 generations (int64)
//   level l    blocks of 24 words: sums, minima, maxima (double) of the 8 blocks below
//
// The last level is a single block. Zero is "no row" for priorities, and "nothing below" for minima and maxima, so that
// zeroed memory is an empty tree. rl_buffers/trees/layout.py computes the same numbers.
#pragma once

#include <cstdint>

namespace rl_buffers {

constexpr std::int64_t kFan = 8;
constexpr std::int64_t kHeaderWords = 16, kLeafWords = 16, kNodeWords = 24;
constexpr std::int64_t kTreeFormat = 0x524c545245453031;  // "RLTREE01"
constexpr int kMaxLevels = 20;
constexpr std::int64_t kMaxCapacity = std::int64_t{1} << 48;

// Places in the header.
constexpr int kLockWord = 0, kFormatWord = 8, kCapacityWord = 9, kLiveWord = 10, kLargestWord = 11;

// Stored priorities lie in [kSmallest, kLargest]: sums stay finite, and a priority above zero remains one.
constexpr double kSmallest = 2.2250738585072014e-308, kLargest = 1e280;

// A view of the memory of one tree.
class Tree {
 public:
  // False where the memory holds no tree.
  bool open(std::int64_t* memory, std::int64_t words);

  // Whether the header makes sense; everything from here on is for who holds the lock.
  bool sound() const { return live() >= 0 && live() <= capacity(); }

  std::int64_t capacity() const { return memory_[kCapacityWord]; }
  std::int64_t live() const { return memory_[kLiveWord]; }
  void set_live(std::int64_t live) { memory_[kLiveWord] = live; }
  double& largest_ever() { return reinterpret_cast<double*>(memory_)[kLargestWord]; }

  double& leaf(std::int64_t slot) { return level_[0][(slot >> 3) * kLeafWords + (slot & 7)]; }
  std::int64_t& generation(std::int64_t slot) {
    return memory_[kHeaderWords + (slot >> 3) * kLeafWords + kFan + (slot & 7)];
  }

  double sum() const;
  double min() const;  // of the priorities above zero; 0 where there is none
  double max() const;

  // Bring the nodes up to date above changed slots; `refresh_slots` takes them in any order, duplicates included.
  void refresh_slots(const std::int64_t* index, std::int64_t n);
  void refresh_range(std::int64_t first_slot, std::int64_t last_slot);
  void rebuild();

  // The slots below which the masses in `mass` end, into `slot`; `mass` is used up.
  void descend(std::int64_t n, double* mass, std::int64_t* slot);

 private:
  void refresh(int level, std::int64_t block);
  void refresh_blocks(std::int64_t* block, std::int64_t n);

  std::int64_t* memory_ = nullptr;
  double* level_[kMaxLevels] = {};
  std::int64_t blocks_[kMaxLevels] = {};
  int top_ = 0;
};

std::int64_t tree_words(std::int64_t capacity);

}  // namespace rl_buffers
