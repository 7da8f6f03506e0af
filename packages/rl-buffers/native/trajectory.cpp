// Rows that are kept once: a comparison of rows, and the assembly of frame stacks from rows that hold one frame each.
#include <cstdint>
#include <cstring>

#include "abi.h"

using std::int32_t;
using std::int64_t;
using std::uint8_t;

// equal[i] = 1 where block b of row a_index[i] of `a` has the bytes of block b of row b_index[i] of `b`, for every b.
//
// A row of `a` has a_row bytes; its blocks of `bytes` bytes start at a_first + block * stride. A row number of -1 on
// either side gives 0. Row numbers are checked against [-1, a_rows) and [-1, b_rows).
RL_EXPORT int64_t rl_rows_equal(int64_t n, int64_t blocks, int64_t bytes, int64_t stride, const uint8_t* a, int64_t a_rows,
                                int64_t a_row, int64_t a_first, const int64_t* a_index, const uint8_t* b, int64_t b_rows,
                                int64_t b_row, int64_t b_first, const int64_t* b_index, uint8_t* equal) {
  if (n < 0 || blocks < 0 || bytes < 0 || stride < 0 || a_rows < 0 || b_rows < 0) return rl_buffers::kBadArgument;
  if (n == 0) return rl_buffers::kOk;
  if (!a_index || !b_index || !equal) return rl_buffers::kBadArgument;
  const bool empty = blocks == 0 || bytes == 0;
  if (!empty) {
    const int64_t end = (blocks - 1) * stride + bytes;
    if (a_first < 0 || b_first < 0 || a_first + end > a_row || b_first + end > b_row) return rl_buffers::kBadArgument;
    if ((a_rows > 0 && !a) || (b_rows > 0 && !b)) return rl_buffers::kBadArgument;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (a_index[i] < -1 || a_index[i] >= a_rows || b_index[i] < -1 || b_index[i] >= b_rows) {
      return rl_buffers::kIndexOutOfRange;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    bool same = a_index[i] >= 0 && b_index[i] >= 0;
    for (int64_t block = 0; same && !empty && block < blocks; ++block) {
      const uint8_t* left = a + a_index[i] * a_row + a_first + block * stride;
      const uint8_t* right = b + b_index[i] * b_row + b_first + block * stride;
      same = std::memcmp(left, right, static_cast<std::size_t>(bytes)) == 0;
    }
    equal[i] = same ? 1 : 0;
  }
  return rl_buffers::kOk;
}

// target[i] = the stack of `frames` frames of row index[i].
//
// newest: n_rows rows of `blocks` blocks of `bytes` bytes, the newest frame of each row. whole_of: for each row its row in
// `whole` (n_whole rows of whole stacks, [blocks][frames][bytes]), or -1 where its older frames are the newer ones of the
// row `lanes` places before it, around the ring of n_rows. Every index is checked against [0, n_rows).
RL_EXPORT int64_t rl_gather_stacks(int64_t n_rows, int64_t lanes, int64_t blocks, int64_t frames, int64_t bytes,
                                   const uint8_t* newest, const int32_t* whole_of, int64_t n_whole, const uint8_t* whole,
                                   const int64_t* index, int64_t n, uint8_t* target) {
  if (n_rows < 0 || lanes < 1 || blocks < 0 || frames < 1 || bytes < 0 || n < 0 || n_whole < 0) {
    return rl_buffers::kBadArgument;
  }
  if (n == 0 || blocks == 0 || bytes == 0) return rl_buffers::kOk;
  if (!newest || !whole_of || !index || !target || (n_whole > 0 && !whole)) return rl_buffers::kBadArgument;
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < 0 || index[i] >= n_rows) return rl_buffers::kIndexOutOfRange;
  }
  const auto size = static_cast<std::size_t>(bytes);
  for (int64_t i = 0; i < n; ++i) {
    uint8_t* out = target + i * blocks * frames * bytes;
    int64_t row = index[i];
    for (int64_t place = frames - 1; place >= 0; --place) {
      const int64_t kept = whole_of[row];
      if (kept >= n_whole) return rl_buffers::kIndexOutOfRange;
      for (int64_t block = 0; block < blocks; ++block) {
        uint8_t* to = out + block * frames * bytes;
        if (kept >= 0) {  // the frames up to here are the newest `place + 1` of this row's whole stack
          const uint8_t* from = whole + (kept * blocks + block) * frames * bytes;
          std::memcpy(to, from + (frames - 1 - place) * bytes, size * static_cast<std::size_t>(place + 1));
        } else {
          std::memcpy(to + place * bytes, newest + (row * blocks + block) * bytes, size);
        }
      }
      if (kept >= 0) break;
      row -= lanes;
      if (row < 0) row += n_rows;
    }
  }
  return rl_buffers::kOk;
}
