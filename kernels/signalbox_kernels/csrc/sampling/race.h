// Races among weights, without sorting them.
//
// A token of a nucleus is sampled by rejection, as in FlashInfer (Ye et al., MLSys 2025): the winner of
// the race among all tokens is in the nucleus if the tokens likelier than it have less than the
// nucleus' mass; otherwise it and all less likely tokens are excluded, and the rest races again. This
// takes few passes over the row, and the winner is that of a race in the nucleus alone. typical_p works
// likewise, by distance from the mean.
//
// The race finds argmax(w / E), E = -log1p(-u) >= u: only a lane with w > u * best needs its
// logarithm.
#pragma once

#include "sampling/logits.h"

namespace SB_NS {

// Returns the token that wins among those with a weight; weights(i) gives W of them from token i on.
template <class Weights>
SB_INLINE int32_t race(uint64_t key, int64_t padded, Weights&& weights) {
  const VU low = VU{} + static_cast<uint32_t>(key);
  const VU high = VU{} + static_cast<uint32_t>(key >> 32);
  VU token;
  for (int j = 0; j < W; ++j) token[j] = static_cast<uint32_t>(j) * 0x9e3779b1u;
  token += low;
  float best = 0.0f;
  int32_t winner = -1;
  V bound{};
  for (int64_t i = 0; i < padded; i += W, token += static_cast<uint32_t>(W) * 0x9e3779b1u) {
    VU x = (token ^ token >> 16) * 0x21f0aaadu;
    x = ((x ^ x >> 15) + high) * 0x735a2d97u;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    const V u = larger(splat(0x1p-33f), __builtin_convertvector(x, V) * 0x1p-32f);
    const V w = weights(i);
    if (!any(w > u * bound)) continue;
    float us[W], ws[W];
    store(us, u);
    store(ws, w);
    for (int j = 0; j < W; ++j) {
      if (!(ws[j] > us[j] * bound[0])) continue;
      const float score = ws[j] / -std::log1p(-us[j]);
      if (!(score > best)) continue;
      best = score;
      winner = static_cast<int32_t>(i + j);
      bound = splat(best * 0.9999f);  // a logarithm may be rounded to a little less than u
    }
  }
  return winner;
}

// Returns the least float from `floor` on for which is_kept holds; it holds for all larger ones.
template <class Predicate>
SB_INLINE float least_kept(float floor, Predicate&& is_kept) {
  uint32_t low, high;
  const float one = 1.0f;
  std::memcpy(&low, &floor, sizeof low);
  std::memcpy(&high, &one, sizeof high);
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    float value;
    std::memcpy(&value, &middle, sizeof value);
    if (is_kept(value))
      high = middle;
    else
      low = middle + 1;
  }
  float least;
  std::memcpy(&least, &low, sizeof least);
  return least;
}

SB_INLINE double mass_above(const DrawScratch& s, float value) {
  const V above = splat(value);
  return total(s.padded, [=](int64_t i) SB_LAMBDA {
    const V w = load(s.w + i);
    return select(w > above, w, V{});
  });
}

SB_INLINE double mass_from(const DrawScratch& s, float value) {
  const V from = splat(value);
  return total(s.padded, [=](int64_t i) SB_LAMBDA {
    const V w = load(s.w + i);
    return select(w >= from, w, V{});
  });
}

// Returns the k-th largest weight.
static float kth_weight(const DrawScratch& s, int64_t size, int64_t k) {
  if (k <= kMaxTop) {
    float values[kMaxTop];
    int32_t tokens[kMaxTop];
    find_top(s.w, size, s.padded, static_cast<int>(k), values, tokens);
    return values[k - 1];
  }
  return least_kept(0.0f, [&](float value) {
    const V above = splat(value);
    int64_t count = 0;
    for (int64_t i = 0; i < s.padded; i += W) {
      const VI is_above = load(s.w + i) > above;
      int32_t lanes[W];
      std::memcpy(lanes, &is_above, sizeof lanes);
      for (int j = 0; j < W; ++j) count -= lanes[j];
    }
    return count < k;
  });
}

static int32_t race_nucleus(const DrawScratch& s, uint64_t key, float floor, double mass) {
  float out = -1.0f;  // this weight and all below are out
  while (true) {
    const V least = splat(floor), above = splat(out);
    const int32_t winner = race(key, s.padded, [=](int64_t i) SB_LAMBDA {
      const V w = load(s.w + i);
      return select((w >= least) & (w > above), w, V{});
    });
    if (winner < 0 || mass_above(s, s.w[winner]) < mass) return winner;
    out = s.w[winner];
  }
}

// Logits that are scaled, less the largest; not so low that 0 times one is NaN.
SB_INLINE V scaled(const DrawScratch& s, int64_t i, V most, V factor) {
  return larger(splat(-200.0f), (load(s.x + i) - most) * factor);
}

static int32_t race_typical(const DrawScratch& s, uint64_t key, float floor, float most,
                            float factor, float typical_p) {
  const V least = splat(floor), top = splat(most), by = splat(factor);
  const double mass = mass_from(s, floor);
  const double moment = total(s.padded, [=](int64_t i) SB_LAMBDA {
    const V w = load(s.w + i);
    return select(w >= least, w * scaled(s, i, top, by), V{});
  });
  const V mean = splat(static_cast<float>(moment / mass));
  float out = INFINITY;  // this distance and all beyond are out
  while (true) {
    const V within = splat(out);
    const int32_t winner = race(key, s.padded, [=](int64_t i) SB_LAMBDA {
      const V w = load(s.w + i), distance = magnitude(scaled(s, i, top, by) - mean);
      return select((w >= least) & (distance < within), w, V{});
    });
    if (winner < 0) return winner;
    const int64_t block = winner / W * W;
    const V distances = magnitude(scaled(s, block, top, by) - mean);
    const float distance = distances[winner - block];
    const V nearer = splat(distance);
    const double before = total(s.padded, [=](int64_t i) SB_LAMBDA {
      const V w = load(s.w + i);
      return select((w >= least) & (magnitude(scaled(s, i, top, by) - mean) < nearer), w, V{});
    });
    if (before < static_cast<double>(typical_p) * mass) return winner;
    out = distance;
  }
}

}  // namespace SB_NS
