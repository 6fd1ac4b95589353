// Prepares a row of logits for a draw: copies it, edits it, and finds its largest.
#pragma once

#include <cmath>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "sampling/sampling_api.h"
#include "isa/simd.h"

namespace SB_NS {

constexpr int kMaxTop = 128;
constexpr int64_t kSumBlock = 1024;  // elements that are summed in float32

SB_INLINE bool any(VI mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32(reinterpret_cast<uint32x4_t>(mask)) != 0;
#else
  int32_t lanes[W];
  std::memcpy(lanes, &mask, sizeof lanes);
  int32_t found = 0;
  for (int i = 0; i < W; ++i) found |= lanes[i];
  return found != 0;
#endif
}

// Sums f(i), vectors of W elements from i on, in float64 from block to block.
template <class F>
SB_INLINE double total(int64_t size, F&& f) {
  double all = 0.0;
  for (int64_t first = 0; first < size; first += kSumBlock) {
    const int64_t end = first + kSumBlock < size ? first + kSumBlock : size;
    V part{};
    for (int64_t i = first; i < end; i += W) part += f(i);
    all += static_cast<double>(sum(part));
  }
  return all;
}

// A row padded to whole vectors: x holds logits (-inf past the end), w weights whose largest is 1.
struct DrawScratch {
  float* x;
  float* w;
  int32_t* seen;  // [vocab_size], all zero between rows
  int64_t padded;
};

struct Best {
  float value;
  bool is_finite;
};

// Copies a row of logits to x.
static Best copy_row(const float* logits, int64_t size, const DrawScratch& s) {
  for (int64_t i = size / W * W; i < s.padded; ++i) s.x[i] = i < size ? logits[i] : -INFINITY;
  V poison{}, best = splat(-INFINITY);
  int64_t i = 0;
  for (; i + W <= size; i += W) {
    const V v = load(logits + i);
    poison = fused(v, V{}, poison);
    best = larger(best, v);
    store(s.x + i, v);
  }
  float rest = 0.0f, most = largest(best);
  for (; i < size; ++i) {
    rest += logits[i] * 0.0f;
    most = logits[i] > most ? logits[i] : most;
  }
  return {most, sum(poison) + rest == 0.0f};
}

static float largest_logit(const DrawScratch& s) {
  V best = splat(-INFINITY);
  for (int64_t i = 0; i < s.padded; i += W) best = larger(best, load(s.x + i));
  return largest(best);
}

// The n largest of x, in descending order; equal ones in order of their index.
static void find_top(const float* x, int64_t size, int64_t padded, int n, float* values,
                     int32_t* tokens) {
  int have = 0;
  for (int64_t first = 0; first < padded; first += 4 * W) {
    if (have == n) {
      const V most = larger(larger(load(x + first), load(x + first + W)),
                            larger(load(x + first + 2 * W), load(x + first + 3 * W)));
      if (!any(most > splat(values[n - 1]))) continue;
    }
    const int64_t end = first + 4 * W < size ? first + 4 * W : size;
    for (int64_t i = first; i < end; ++i) {
      if (have == n && !(x[i] > values[n - 1])) continue;
      int at = have < n ? have++ : n - 1;
      for (; at > 0 && values[at - 1] < x[i]; --at) {
        values[at] = values[at - 1];
        tokens[at] = tokens[at - 1];
      }
      values[at] = x[i];
      tokens[at] = static_cast<int32_t>(i);
    }
  }
}

// Changes of logits

static void apply_mask(const uint32_t* words, int64_t size, float* x) {
  for (int64_t first = 0; first < size; first += 32) {
    const uint32_t word = words[first / 32];
    if (word == 0xffffffffu) continue;
    const int64_t end = first + 32 < size ? first + 32 : size;
    for (int64_t i = first; i < end; ++i)
      if (!(word >> (i - first) & 1u)) x[i] = -INFINITY;
  }
}

static bool apply_penalties(const SbDraws& d, int64_t row, const DrawScratch& s) {
  constexpr int32_t kSeen = 1 << 30;  // beside the number of times that the output has a token
  const float presence = d.presence[row], frequency = d.frequency[row];
  const float repetition = d.repetition[row];
  if (presence == 0.0f && frequency == 0.0f && repetition == 1.0f) return false;
  const int32_t* tokens = d.tokens + d.owners[row] * d.token_stride;
  const int64_t num_prompt = d.num_prompt[row], num_tokens = d.num_tokens[row];
  const int64_t first = repetition == 1.0f ? num_prompt : 0;
  for (int64_t i = first; i < num_tokens; ++i) {
    int32_t& seen = s.seen[tokens[i]];
    seen = (seen | kSeen) + (i >= num_prompt);
  }
  for (int64_t i = first; i < num_tokens; ++i) {
    int32_t& seen = s.seen[tokens[i]];
    if (!seen) continue;  // done
    const int32_t count = seen & ~kSeen;
    seen = 0;
    float& x = s.x[tokens[i]];
    x = x > 0.0f ? x / repetition : x * repetition;
    x -= frequency * static_cast<float>(count);
    if (count) x -= presence;
  }
  return true;
}

// Returns whether anything may have changed.
static bool edit_row(const SbDraws& d, int64_t row, const DrawScratch& s) {
  bool is_edited = false;
  if (d.mask_of_row && d.mask_of_row[row] >= 0) {
    const int64_t mask = d.mask_of_row[row];
    apply_mask(d.masks + mask * d.mask_stride, d.vocab_size, s.x);
    is_edited = true;
  }
  if (d.suppressed_end) {
    const int32_t first = row ? d.suppressed_end[row - 1] : 0;
    for (int32_t i = first; i < d.suppressed_end[row]; ++i) s.x[d.suppressed[i]] = -INFINITY;
    is_edited = is_edited || d.suppressed_end[row] > first;
  }
  if (d.bias_end) {
    const int32_t first = row ? d.bias_end[row - 1] : 0;
    for (int32_t i = first; i < d.bias_end[row]; ++i) s.x[d.bias_tokens[i]] += d.biases[i];
    is_edited = is_edited || d.bias_end[row] > first;
  }
  if (d.presence && apply_penalties(d, row, s)) is_edited = true;
  return is_edited;
}

}  // namespace SB_NS
