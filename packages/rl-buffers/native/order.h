// Keeps the order of copied rows and of the numbers that Python reads and writes around a call.
//
// Processes that share rows read them without a lock and then ask those numbers whether a row was touched meanwhile (a
// seqlock). GCC's ThreadSanitizer knows no fences, and sees one process only.
#pragma once

#include <atomic>

#if defined(__SANITIZE_THREAD__)
#define RL_NO_FENCES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RL_NO_FENCES 1
#endif
#endif

namespace rl_buffers {

inline void keep_order() {
#if !defined(RL_NO_FENCES)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace rl_buffers
