// A lock inside shared memory: one word that threads and processes contend for, and that survives the death of its owner.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(_WIN32)
#include <process.h>
#else
#include <cerrno>
#include <csignal>
#include <unistd.h>
#endif

namespace rl_buffers {

static_assert(std::atomic<std::int64_t>::is_always_lock_free, "the lock word is shared between processes");
static_assert(sizeof(std::atomic<std::int64_t>) == sizeof(std::int64_t), "the lock word is a plain integer");

inline std::int64_t own_process() {
#if defined(_WIN32)
  return _getpid();
#else
  return getpid();
#endif
}

inline bool process_is_gone(std::int64_t process) {
#if defined(_WIN32)
  (void)process;
  return false;
#else
  return kill(static_cast<pid_t>(process), 0) == -1 && errno == ESRCH;
#endif
}

// Holds the word (0 = free, else the owner's process id) from construction to destruction, unless it timed out.
//
// What the lock guards takes microseconds. So a waiter spins a little, then yields, then sleeps; an owner that is still
// there after `patience` is looked for, and where its process is gone the lock is taken over: `recovered` then tells
// that what it guards may be half written.
class SharedLock {
 public:
  enum State { kHeld, kRecovered, kTimedOut };

  explicit SharedLock(std::int64_t* word, std::chrono::milliseconds patience = std::chrono::milliseconds(500),
                      std::chrono::milliseconds limit = std::chrono::milliseconds(60000))
      : word_(reinterpret_cast<std::atomic<std::int64_t>*>(word)), self_(own_process()), state_(wait(patience, limit)) {}

  ~SharedLock() {
    if (state_ != kTimedOut) word_->store(0, std::memory_order_release);
  }

  SharedLock(const SharedLock&) = delete;
  SharedLock& operator=(const SharedLock&) = delete;

  bool held() const { return state_ != kTimedOut; }
  bool recovered() const { return state_ == kRecovered; }

 private:
  static constexpr int kSpins = 64, kYields = 64;

  bool take(std::int64_t from) {
    return word_->load(std::memory_order_relaxed) == from &&
           word_->compare_exchange_strong(from, self_, std::memory_order_acquire, std::memory_order_relaxed);
  }

  State wait(std::chrono::milliseconds patience, std::chrono::milliseconds limit) {
    for (int i = 0; i < kSpins + kYields; ++i) {
      if (take(0)) return kHeld;
      if (i >= kSpins) std::this_thread::yield();
    }
    const auto start = std::chrono::steady_clock::now();
    auto asked = start;
    for (;;) {
      if (take(0)) return kHeld;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      const auto now = std::chrono::steady_clock::now();
      if (now - asked >= patience) {
        asked = now;
        const std::int64_t owner = word_->load(std::memory_order_relaxed);
        if (owner != 0 && process_is_gone(owner) && take(owner)) return kRecovered;
      }
      if (now - start >= limit) return kTimedOut;
    }
  }

  std::atomic<std::int64_t>* word_;
  std::int64_t self_;
  State state_;
};

}  // namespace rl_buffers
