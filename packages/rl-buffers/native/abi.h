// The C interface of rl_buffers: how a function is exported, its error codes and the interface's version.
//
// Every function is extern "C", takes raw pointers and fixed-width integers, allocates nothing (but the threads of pool.h,
// which end with the call), throws nothing and keeps no global state: any Python, any torch and any number of threads may
// call it. Errors are returned, never signalled: a result below zero is one of the codes here, and details (a position)
// are written through an out parameter.
#pragma once

#include <cstdint>

#if defined(_WIN32)
#define RL_EXPORT extern "C" __declspec(dllexport)
#else
#define RL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace rl_buffers {

// Raise it whenever a signature or a meaning changes; rl_buffers/native.py refuses a library with another number.
constexpr std::int64_t kAbi = 3;

constexpr std::int64_t kOk = 0;
constexpr std::int64_t kIndexOutOfRange = -1;  // an index is below zero or beyond the live rows
constexpr std::int64_t kBadArgument = -2;      // a null pointer or a negative size
constexpr std::int64_t kBadPriority = -3;      // a priority is negative, infinite or not a number
constexpr std::int64_t kNothingToDraw = -4;    // no row has a priority above zero
constexpr std::int64_t kBadTree = -5;          // the memory of a priority tree was overwritten by something else
constexpr std::int64_t kLockTimeout = -6;      // the lock of a priority tree did not become free
constexpr std::int64_t kNoRoom = -7;           // arrays that the caller makes room in are too small
constexpr std::int64_t kNotATensor = -8;       // a Python object cannot be looked at; a Python exception says why

}  // namespace rl_buffers
