// Ring write: copies spans of rows of many leaves into a storage, each leaf by one memcpy per span.
#include <cstdint>
#include <cstring>

#include "abi.h"
#include "order.h"
#include "pool.h"

using std::int64_t;
using std::uint8_t;

// targets[leaf][start + i] = sources[leaf][source + i] for every span (start, source, n), every leaf and every i < n.
//
// targets, sources: n_leaves addresses of row-major memory with `capacity` and `n_source` rows; row_bytes: n_leaves row
// sizes. Every span is checked against both before anything is written; the number of the first bad one goes to *bad.
RL_EXPORT int64_t rl_write_rows(int64_t n_leaves, uint8_t* const* targets, const int64_t* row_bytes, int64_t capacity,
                                const uint8_t* const* sources, int64_t n_source, int64_t n_spans, const int64_t* spans,
                                int64_t n_threads, int64_t* bad) {
  if (n_leaves < 0 || n_spans < 0 || capacity < 0 || n_source < 0) return rl_buffers::kBadArgument;
  if (n_leaves == 0 || n_spans == 0) return rl_buffers::kOk;
  if (!targets || !row_bytes || !sources || !spans || !bad) return rl_buffers::kBadArgument;
  int64_t total = 0;
  for (int64_t s = 0; s < n_spans; ++s) {
    const int64_t start = spans[3 * s], source = spans[3 * s + 1], n = spans[3 * s + 2];
    if (start < 0 || source < 0 || n < 0 || n > capacity - start || n > n_source - source) {
      *bad = s;
      return rl_buffers::kIndexOutOfRange;
    }
    total += n;
  }
  for (int64_t leaf = 0; leaf < n_leaves; ++leaf) {
    if (row_bytes[leaf] < 0 || (row_bytes[leaf] > 0 && total > 0 && (!targets[leaf] || !sources[leaf]))) {
      *bad = leaf;
      return rl_buffers::kBadArgument;
    }
  }
  // Processes that share the rows may read them meanwhile: the numbers that Python writes before and after keep their order.
  rl_buffers::keep_order();
  for (int64_t leaf = 0; leaf < n_leaves; ++leaf) {
    const int64_t bytes = row_bytes[leaf];
    if (bytes == 0) continue;
    for (int64_t s = 0; s < n_spans; ++s) {
      uint8_t* target = targets[leaf] + spans[3 * s] * bytes;
      const uint8_t* source = sources[leaf] + spans[3 * s + 1] * bytes;
      const int64_t n = spans[3 * s + 2];
      rl_buffers::in_parts(n, rl_buffers::threads_for(n * bytes, n_threads), [=](int64_t first, int64_t last) {
        std::memcpy(target + first * bytes, source + first * bytes, static_cast<std::size_t>((last - first) * bytes));
      });
    }
  }
  rl_buffers::keep_order();
  return rl_buffers::kOk;
}
