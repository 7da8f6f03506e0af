// What a loss logs about a batch, each in one pass: a dozen small tensor operations cost more than the logs are worth.
//
// Sums are kept in double precision. Arrays are read flat: [B, T, F] stands for their number of elements.

#include <cmath>
#include <cstdint>

#if defined(_WIN32)
#define RL_EXPORT extern "C" __declspec(dllexport)
#else
#define RL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

// out: mean of -x, effective sample size of the weights e^x as a share of all, largest and mean weight.
template <class S>
void ratio_statistics(const S* x, int64_t count, S* out) {
  double largest = x[0], sum = 0, total = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] > largest) largest = x[i];
    sum += x[i];
  }
  if (std::isnan(sum)) largest = sum;  // comparisons with a NaN are false and would lose it
  for (int64_t i = 0; i < count; ++i) {
    const double share = std::exp(S(x[i] - S(largest)));
    total += share;
    squares += share * share;
  }
  const double weight = std::exp(largest);
  out[0] = S(-sum / count);
  out[1] = S(total * total / (squares * count));
  out[2] = S(weight);
  out[3] = S(weight * total / count);
}

// out: the share of x outside of [low, high], NaN included.
template <class S>
void share_outside(const S* x, int64_t count, S low, S high, S* out) {
  int64_t outside = 0;
  for (int64_t i = 0; i < count; ++i) outside += !(x[i] >= low && x[i] <= high);
  out[0] = S(double(outside) / count);
}

// out: 1 - Var(target - prediction) / Var(target).
template <class S>
void explained_variance(const S* prediction, const S* target, int64_t count, S tiny, S* out) {
  double mean = 0, error_mean = 0, spread = 0, error_spread = 0;
  for (int64_t i = 0; i < count; ++i) {
    mean += target[i];
    error_mean += double(target[i]) - prediction[i];
  }
  mean /= count;
  error_mean /= count;
  for (int64_t i = 0; i < count; ++i) {
    const double here = target[i] - mean, error = double(target[i]) - prediction[i] - error_mean;
    spread += here * here;
    error_spread += error * error;
  }
  spread /= count;
  error_spread /= count;
  out[0] = S(1 - error_spread / (spread < tiny ? double(tiny) : spread));
}

}  // namespace

#define RL_STATISTICS(SUFFIX, S)                                                                                    \
  RL_EXPORT void rl_ratio_statistics_##SUFFIX(const S* x, int64_t b, int64_t t, int64_t f, S* out) {                \
    ratio_statistics<S>(x, b * t * f, out);                                                                         \
  }                                                                                                                 \
  RL_EXPORT void rl_share_outside_##SUFFIX(const S* x, int64_t b, int64_t t, int64_t f, double low, double high,    \
                                           S* out) {                                                                \
    share_outside<S>(x, b * t * f, S(low), S(high), out);                                                           \
  }                                                                                                                 \
  RL_EXPORT void rl_explained_variance_##SUFFIX(const S* prediction, const S* target, int64_t b, int64_t t,         \
                                                int64_t f, double tiny, S* out) {                                   \
    explained_variance<S>(prediction, target, b * t * f, S(tiny), out);                                             \
  }

RL_STATISTICS(f32, float)
RL_STATISTICS(f64, double)
