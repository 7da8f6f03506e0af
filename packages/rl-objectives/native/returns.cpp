// Scans over contiguous arrays [B, T, F]: GAE, TD(lambda), V-trace, n-step sums, and the plain linear recurrences they
// rest on. GAE of agents that do not act in every row is in masked_gae.cpp.
//
// B counts everything before the time dimension, F everything after it. Sums are kept in the arrays' own type and in the
// order of the torch twin. An end flag selects instead of multiplying: a NaN beyond an end never reaches the rows before it.

#include <cmath>
#include <cstdint>

#if defined(_WIN32)
#define RL_EXPORT extern "C" __declspec(dllexport)
#else
#define RL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

// A recurrence x_t = a_t + b_t x_{t+1} waits for its last result at each step; this many rows run side by side to hide it.
constexpr int64_t kLanes = 8;

// Rows of one feature: `step(i, next)` gives x at flat index i from x at i + 1 (0 behind the last step).
template <class S, class Step>
void scan_rows(int64_t rows, int64_t steps, S* x, Step step) {
  int64_t row = 0;
  for (; row + kLanes <= rows; row += kLanes) {
    S next[kLanes] = {};
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t i = (row + lane) * steps + t;
        next[lane] = step(i, next[lane], t == steps - 1);
        x[i] = next[lane];
      }
    }
  }
  for (; row < rows; ++row) {
    S next = 0;
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t i = row * steps + t;
      next = step(i, next, t == steps - 1);
      x[i] = next;
    }
  }
}

template <class S, class Step>
void scan(int64_t rows, int64_t steps, int64_t features, S* x, Step step) {
  if (features == 1) {
    scan_rows<S>(rows, steps, x, step);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = steps - 1; t >= 0; --t) {
      const int64_t start = (row * steps + t) * features;
      const bool last = t == steps - 1;
      for (int64_t i = start; i < start + features; ++i) x[i] = step(i, last ? S(0) : x[i + features], last);
    }
  }
}

template <class S>
void linear_recurrence(const S* a, const S* b, int64_t rows, int64_t steps, int64_t features, S* x) {
  scan<S>(rows, steps, features, x,
          [=](int64_t i, S next, bool last) { return last || b[i] == S(0) ? a[i] : a[i] + b[i] * next; });
}

// y_t = g_t + b_{t-1} y_{t-1}: the transpose of linear_recurrence, which carries its gradients.
template <class S>
void forward_recurrence(const S* g, const S* b, int64_t rows, int64_t steps, int64_t features, S* y) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t beyond = row + kLanes < rows ? row + kLanes : rows;
    for (int64_t t = 0; t < steps; ++t) {
      for (int64_t lane = row; lane < beyond; ++lane) {
        const int64_t start = (lane * steps + t) * features;
        for (int64_t i = start; i < start + features; ++i) {
          const int64_t before = i - features;
          y[i] = t == 0 || b[before] == S(0) ? g[i] : g[i] + b[before] * y[before];
        }
      }
    }
  }
}

// A_t = r_t + gamma (1 - m_t) V'_t - V_t + gamma lmbda (1 - d_t) A_{t+1}; target_t = A_t + V_t.
template <class S>
void gae(const S* value, const S* next_value, const S* reward, const uint8_t* done, const uint8_t* terminated,
         int64_t rows, int64_t steps, int64_t features, S gamma, S lmbda, S* __restrict advantage, S* __restrict target) {
  const S trace = gamma * lmbda;
  const int64_t count = rows * steps * features;
  // The deltas have no dependence on each other: this loop is vectorised by the compiler.
  for (int64_t i = 0; i < count; ++i) {
    const S bootstrap = terminated[i] ? S(0) : next_value[i];
    target[i] = reward[i] + gamma * bootstrap - value[i];
  }
  const S* delta = target;
  scan<S>(rows, steps, features, advantage,
          [=](int64_t i, S next, bool) { return done[i] ? delta[i] : delta[i] + trace * next; });
  for (int64_t i = 0; i < count; ++i) target[i] = advantage[i] + value[i];
}

// G_t = r_t + gamma (1 - m_t) [(1 - lmbda) V'_t + lmbda G_{t+1}], G_{t+1} = V'_t at done steps and at the last one.
template <class S>
void td_lambda(const S* next_value, const S* reward, const uint8_t* done, const uint8_t* terminated, int64_t rows,
               int64_t steps, int64_t features, S gamma, S lmbda, S* returns) {
  const S rest = S(1) - lmbda;
  scan<S>(rows, steps, features, returns, [=](int64_t i, S next, bool last) {
    if (terminated[i]) return reward[i];
    if (done[i] || last) return reward[i] + gamma * next_value[i];
    return reward[i] + gamma * (rest * next_value[i] + lmbda * next);
  });
}

// vs_t - V_t = rho_t (r_t + gamma (1 - m_t) V'_t - V_t) + gamma (1 - d_t) c_t (vs_{t+1} - V_{t+1});
// A_t = rho_t (r_t + gamma (1 - m_t) w_t - V_t), w_t = vs_{t+1}, or V'_t at done steps and at the last one.
// `log_ratio` is pi / mu of the action taken. The ratios fill `advantage` first: exp is vectorised apart from the scan.
template <class S>
void vtrace(const S* log_ratio, const S* value, const S* next_value, const S* reward, const uint8_t* done,
            const uint8_t* terminated, int64_t rows, int64_t steps, int64_t features, S gamma, S rho_bar, S c_bar,
            S* __restrict advantage, S* __restrict target) {
  const int64_t count = rows * steps * features;
  for (int64_t i = 0; i < count; ++i) advantage[i] = std::exp(log_ratio[i]);
  scan<S>(rows, steps, features, target, [=](int64_t i, S next, bool last) {
    const S ratio = advantage[i];
    // A NaN ratio must stay one: the comparison is false for it.
    const S rho = ratio > rho_bar ? rho_bar : ratio, c = ratio > c_bar ? c_bar : ratio;
    const bool alone = last || done[i];
    const S delta = rho * (reward[i] + (terminated[i] ? S(0) : gamma * next_value[i]) - value[i]);
    const S behind = alone ? next_value[i] : value[i + features] + next;
    advantage[i] = rho * (reward[i] + (terminated[i] ? S(0) : gamma * behind) - value[i]);
    return alone ? delta : delta + gamma * c * next;
  });
  for (int64_t i = 0; i < count; ++i) target[i] += value[i];
}

// x_t = one_step_t, then n - 1 times x_t = r_t + b_t x_{t+1} where the trajectory goes on.
template <class S>
void n_step(const S* one_step, const S* reward, const S* b, const uint8_t* done, int64_t rows, int64_t steps,
            int64_t features, int64_t n, S* x) {
  const int64_t row_size = steps * features;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t start = row * row_size, end = start + row_size - features;
    for (int64_t i = start; i < start + row_size; ++i) x[i] = one_step[i];
    for (int64_t k = 1; k < n && k < steps; ++k) {
      for (int64_t i = start; i < end; ++i) {
        if (!done[i]) x[i] = b[i] == S(0) ? reward[i] : reward[i] + b[i] * x[i + features];
      }
    }
  }
}

}  // namespace

RL_EXPORT int32_t rl_objectives_abi() { return 2; }

#define RL_RETURNS(SUFFIX, S)                                                                                         \
  RL_EXPORT void rl_linear_recurrence_##SUFFIX(const S* a, const S* b, int64_t rows, int64_t steps, int64_t features, \
                                               S* x) {                                                                \
    linear_recurrence<S>(a, b, rows, steps, features, x);                                                             \
  }                                                                                                                   \
  RL_EXPORT void rl_gae_##SUFFIX(const S* value, const S* next_value, const S* reward, const uint8_t* done,           \
                                 const uint8_t* terminated, int64_t rows, int64_t steps, int64_t features,            \
                                 double gamma, double lmbda, S* advantage, S* target) {                               \
    gae<S>(value, next_value, reward, done, terminated, rows, steps, features, S(gamma), S(lmbda), advantage, target); \
  }                                                                                                                   \
  RL_EXPORT void rl_td_lambda_##SUFFIX(const S* next_value, const S* reward, const uint8_t* done,                     \
                                       const uint8_t* terminated, int64_t rows, int64_t steps, int64_t features,      \
                                       double gamma, double lmbda, S* returns) {                                      \
    td_lambda<S>(next_value, reward, done, terminated, rows, steps, features, S(gamma), S(lmbda), returns);           \
  }                                                                                                                   \
  RL_EXPORT void rl_forward_recurrence_##SUFFIX(const S* g, const S* b, int64_t rows, int64_t steps,                  \
                                                int64_t features, S* y) {                                             \
    forward_recurrence<S>(g, b, rows, steps, features, y);                                                            \
  }                                                                                                                   \
  RL_EXPORT void rl_vtrace_##SUFFIX(const S* log_ratio, const S* value, const S* next_value, const S* reward,         \
                                    const uint8_t* done, const uint8_t* terminated, int64_t rows, int64_t steps,      \
                                    int64_t features, double gamma, double rho_bar, double c_bar, S* advantage,       \
                                    S* target) {                                                                      \
    vtrace<S>(log_ratio, value, next_value, reward, done, terminated, rows, steps, features, S(gamma), S(rho_bar),    \
              S(c_bar), advantage, target);                                                                           \
  }                                                                                                                   \
  RL_EXPORT void rl_n_step_##SUFFIX(const S* one_step, const S* reward, const S* b, const uint8_t* done,              \
                                    int64_t rows, int64_t steps, int64_t features, double n, S* x) {                  \
    n_step<S>(one_step, reward, b, done, rows, steps, features, int64_t(n), x);                                       \
  }

RL_RETURNS(f32, float)
RL_RETURNS(f64, double)
