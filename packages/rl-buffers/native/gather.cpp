// Row gather: copies chosen rows of many leaves into contiguous outputs, the heart of a replay sample.
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "order.h"
#include "pool.h"

namespace {

using std::int64_t;
using std::uint8_t;

// Rows ahead of the copy whose source is fetched: replay rows are random, so each one is a cache miss.
constexpr int64_t kAhead = 8;

#if defined(__GNUC__)
inline void prefetch(const uint8_t* address) { __builtin_prefetch(address, 0, 0); }
#else
inline void prefetch(const uint8_t*) {}
#endif

// The row size as a template argument turns memcpy into one or two moves.
template <int64_t kBytes>
void gather_fixed(const uint8_t* source, const int64_t* index, int64_t n, uint8_t* target) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(source + index[i + kAhead] * kBytes);
    std::memcpy(target + i * kBytes, source + index[i] * kBytes, kBytes);
  }
}

void gather_any(const uint8_t* source, int64_t bytes, const int64_t* index, int64_t n, uint8_t* target) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const uint8_t* next = source + index[i + kAhead] * bytes;
      prefetch(next);
      if (bytes > 64) prefetch(next + 64);
    }
    std::memcpy(target + i * bytes, source + index[i] * bytes, static_cast<std::size_t>(bytes));
  }
}

void gather_leaf(const uint8_t* source, int64_t bytes, const int64_t* index, int64_t n, uint8_t* target) {
  switch (bytes) {
    case 0: return;
    case 1: return gather_fixed<1>(source, index, n, target);
    case 2: return gather_fixed<2>(source, index, n, target);
    case 4: return gather_fixed<4>(source, index, n, target);
    case 8: return gather_fixed<8>(source, index, n, target);
    case 16: return gather_fixed<16>(source, index, n, target);
    default: return gather_any(source, bytes, index, n, target);
  }
}

}  // namespace

RL_EXPORT int64_t rl_buffers_abi() { return rl_buffers::kAbi; }

// target[leaf][i] = source[leaf][index[i]] for every leaf and every i < n_index.
//
// sources, targets: n_leaves addresses of row-major memory; row_bytes: n_leaves row sizes (0 is allowed).
// Every index is checked against [0, n_live) before anything is written; the first bad position goes to *bad. At most
// n_threads threads share the work, more than one above a megabyte only.
RL_EXPORT int64_t rl_gather_rows(int64_t n_leaves, const uint8_t* const* sources, const int64_t* row_bytes, int64_t n_live,
                                 const int64_t* index, int64_t n_index, uint8_t* const* targets, int64_t n_threads,
                                 int64_t* bad) {
  if (n_leaves < 0 || n_index < 0 || n_live < 0) return rl_buffers::kBadArgument;
  if (n_leaves == 0 || n_index == 0) return rl_buffers::kOk;
  if (!sources || !row_bytes || !index || !targets || !bad) return rl_buffers::kBadArgument;
  for (int64_t i = 0; i < n_index; ++i) {
    if (index[i] < 0 || index[i] >= n_live) {
      *bad = i;
      return rl_buffers::kIndexOutOfRange;
    }
  }
  for (int64_t leaf = 0; leaf < n_leaves; ++leaf) {
    if (row_bytes[leaf] < 0 || (row_bytes[leaf] > 0 && (!sources[leaf] || !targets[leaf]))) {
      *bad = leaf;
      return rl_buffers::kBadArgument;
    }
  }
  // Processes that share the rows may write them meanwhile: the numbers that Python reads before and after keep their order.
  rl_buffers::keep_order();
  int64_t bytes = 0;
  for (int64_t leaf = 0; leaf < n_leaves; ++leaf) bytes += row_bytes[leaf] * n_index;
  rl_buffers::in_parts(n_index, rl_buffers::threads_for(bytes, n_threads), [=](int64_t first, int64_t last) {
    for (int64_t leaf = 0; leaf < n_leaves; ++leaf) {
      const int64_t row = row_bytes[leaf];
      gather_leaf(sources[leaf], row, index + first, last - first, targets[leaf] + first * row);
    }
  });
  rl_buffers::keep_order();
  return rl_buffers::kOk;
}
