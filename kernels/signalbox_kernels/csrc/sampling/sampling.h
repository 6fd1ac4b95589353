// One draw from one row of logits, or the log probability of a given token there.
#pragma once

#include "sampling/race.h"

namespace SB_NS {

constexpr float kGreedyBelow = 1e-5f;

// Draws from x, whose largest is `most`.
static int32_t draw_token(const SbDraws& d, int64_t row, const DrawScratch& s, float most) {
  const int64_t size = d.vocab_size, top_k = d.top_k[row];
  const float top_p = d.top_p[row], min_p = d.min_p[row], typical_p = d.typical_p[row];
  const float factor = 1.0f / d.temperature[row];
  const V top = splat(most), by = splat(factor);
  const uint64_t key = d.keys[row];
  const bool has_top_k = top_k > 0 && top_k < size;
  if (!has_top_k && top_p >= 1.0f && min_p <= 0.0f && typical_p >= 1.0f)
    return race(key, s.padded,
                [=](int64_t i) SB_LAMBDA { return exp((load(s.x + i) - top) * by); });
  for (int64_t i = 0; i < s.padded; i += W) store(s.w + i, exp((load(s.x + i) - top) * by));
  float floor = min_p > 0.0f ? min_p : 0.0f;
  if (has_top_k) floor = std::fmax(floor, kth_weight(s, size, top_k));
  const double nucleus =
      top_p < 1.0f ? static_cast<double>(top_p) * mass_from(s, floor) : INFINITY;
  if (typical_p >= 1.0f) return race_nucleus(s, key, floor, nucleus);
  if (top_p < 1.0f)
    floor = least_kept(floor, [&](float value) { return mass_above(s, value) < nucleus; });
  return race_typical(s, key, floor, most, factor, typical_p);
}

// Reports the likeliest tokens of the row in x. Returns the logarithm of the sum.
static float report_top(const SbDraws& d, int64_t row, const DrawScratch& s, float most) {
  const V top = splat(most);
  const double mass =
      total(s.padded, [=](int64_t i) SB_LAMBDA { return exp(load(s.x + i) - top); });
  const auto log_sum = static_cast<float>(static_cast<double>(most) + std::log(mass));
  const auto count = static_cast<int>(d.num_logprobs[row]);
  if (count > 0) {
    float* values = d.top_logprobs + row * d.max_logprobs;
    find_top(s.x, d.vocab_size, s.padded, count, values, d.top_tokens + row * d.max_logprobs);
    for (int i = 0; i < count; ++i) values[i] -= log_sum;
  }
  return log_sum;
}

static void report_token(const SbDraws& d, int64_t row, int32_t token, float log_sum) {
  const float* logits = d.logits + d.logits_row[row] * d.vocab_size;
  const float mine = logits[token];
  int32_t rank = 0;
  for (int64_t i = 0; i < d.vocab_size; ++i) rank += logits[i] >= mine;
  d.rank[row] = rank;
  d.logprob[row] = mine - log_sum;
}

static void draw_row(const SbDraws& d, int64_t row, char* scratch) {
  const int64_t size = d.vocab_size, padded = (size + 63) / 64 * 64;
  auto* floats = reinterpret_cast<float*>(scratch);
  auto* seen = reinterpret_cast<int32_t*>(floats + 2 * padded);
  const DrawScratch s{floats, floats + padded, seen, padded};
  Best best = copy_row(d.logits + d.logits_row[row] * size, size, s);
  d.status[row] = best.is_finite ? SB_DRAWN : SB_NOT_FINITE;
  if (!best.is_finite) return;
  const bool is_reported = d.num_logprobs[row] >= 0;
  const float log_sum = is_reported ? report_top(d, row, s, best.value) : 0.0f;
  if (d.targets) return report_token(d, row, d.targets[row], log_sum);
  if (edit_row(d, row, s)) best.value = largest_logit(s);
  if (!(best.value > -INFINITY)) {
    d.status[row] = SB_NONE_LEFT;
    return;
  }
  int32_t token = -1;
  if (d.temperature[row] >= kGreedyBelow) token = draw_token(d, row, s, best.value);
  if (token < 0)  // greedy
    for (token = 0; s.x[token] != best.value;) ++token;
  d.drawn[row] = token;
  if (is_reported) report_token(d, row, token, log_sum);
}

}  // namespace SB_NS
