// GAE of agents that do not act in every row, in one pass backwards over contiguous arrays [B, T, F].
//
// Rows outside of the agent's spans (see functional/masked_gae.py) are read but never reach a result.

#include <cstdint>

#if defined(_WIN32)
#define RL_EXPORT extern "C" __declspec(dllexport)
#else
#define RL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

// What lies behind a row, gathered while going backwards: the rows up to the agent's next own row, or to the first end.
template <class S>
struct Tail {
  S earned = 0, following = 0, next_advantage = 0, own_value = 0;
  bool empty = true, ended = false, no_future = false;
};

template <class S>
void masked_gae(const S* value, const S* next_value, const S* reward, const S* gamma, const S* trace,
                const uint8_t* done, const uint8_t* terminated, const uint8_t* acts, const uint8_t* exists,
                int64_t rows, int64_t steps, int64_t features, bool per_step, S* advantage, S* target) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t feature = 0; feature < features; ++feature) {
      Tail<S> tail;
      for (int64_t t = steps - 1; t >= 0; --t) {
        const int64_t i = (row * steps + t) * features + feature;
        const bool last = t == steps - 1;
        const bool own = acts[i] && exists[i];
        const bool cut = exists[i] && !last && !exists[i + features];
        const bool no_future = terminated[i] && exists[i];
        if (cut || no_future || (done[i] && exists[i])) {
          tail.earned = reward[i];
          tail.following = next_value[i];
          tail.ended = true;
          tail.no_future = no_future;
        } else if (tail.empty) {
          tail.earned = reward[i];
          tail.following = last || own ? next_value[i] : tail.own_value;
        } else {
          tail.earned += reward[i];
        }
        tail.empty = false;
        if (!own) {
          advantage[i] = S(0);
          target[i] = value[i];
          continue;
        }
        const S discount = per_step ? gamma[i] : *gamma, decay = per_step ? trace[i] : *trace;
        S result = tail.earned + (tail.no_future ? S(0) : discount * tail.following) - value[i];
        if (!tail.ended) result += decay * tail.next_advantage;
        advantage[i] = result;
        target[i] = result + value[i];
        tail.next_advantage = result;
        tail.own_value = value[i];
        tail.empty = true;
        tail.ended = tail.no_future = false;
      }
    }
  }
}

}  // namespace

#define RL_MASKED_GAE(SUFFIX, S)                                                                                      \
  RL_EXPORT void rl_masked_gae_##SUFFIX(const S* value, const S* next_value, const S* reward, const uint8_t* done,    \
                                        const uint8_t* terminated, const uint8_t* acts, const uint8_t* exists,        \
                                        int64_t rows, int64_t steps, int64_t features, double gamma, double trace,    \
                                        S* advantage, S* target) {                                                    \
    const S one_gamma = S(gamma), one_trace = S(trace);                                                               \
    masked_gae<S>(value, next_value, reward, &one_gamma, &one_trace, done, terminated, acts, exists, rows, steps,     \
                  features, false, advantage, target);                                                                \
  }                                                                                                                   \
  RL_EXPORT void rl_masked_gae_per_step_##SUFFIX(                                                                     \
      const S* value, const S* next_value, const S* reward, const S* gamma, const S* trace, const uint8_t* done,      \
      const uint8_t* terminated, const uint8_t* acts, const uint8_t* exists, int64_t rows, int64_t steps,             \
      int64_t features, S* advantage, S* target) {                                                                    \
    masked_gae<S>(value, next_value, reward, gamma, trace, done, terminated, acts, exists, rows, steps, features,     \
                  true, advantage, target);                                                                           \
  }

RL_MASKED_GAE(f32, float)
RL_MASKED_GAE(f64, double)
