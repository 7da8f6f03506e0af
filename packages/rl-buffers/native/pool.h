// Splits a large copy over a few threads that live for one call, so that nothing is left to fork, to shut down or to configure.
//
// A thread takes about 20 us to start, so kernels ask for more than one above a megabyte only. OpenMP is not used: its
// barrier was seen to cost 12 ms on a busy machine, and its pool does not survive a fork.
#pragma once

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>

namespace rl_buffers {

constexpr std::int64_t kBytesPerThread = 1 << 20;
constexpr std::int64_t kMaxThreads = 16;

// How many threads a copy of `bytes` deserves, at most `allowed`.
inline std::int64_t threads_for(std::int64_t bytes, std::int64_t allowed) {
  return std::max<std::int64_t>(1, std::min({bytes / kBytesPerThread, allowed, kMaxThreads}));
}

// Calls work(first, last) on parts of [0, n), one part per thread; the caller's thread takes one of them.
template <typename Work>
void in_parts(std::int64_t n, std::int64_t threads, const Work& work) {
  threads = std::max<std::int64_t>(1, std::min(threads, n));
  std::thread started[kMaxThreads];
  std::int64_t done = 0;  // parts that are under way; the rest is the caller's
  for (; done < threads - 1; ++done) {
    try {
      started[done] = std::thread(work, n * done / threads, n * (done + 1) / threads);
    } catch (const std::system_error&) {  // no thread to be had: go on with those that there are
      break;
    }
  }
  work(n * done / threads, n);
  for (std::int64_t i = 0; i < done; ++i) started[i].join();
}

}  // namespace rl_buffers
