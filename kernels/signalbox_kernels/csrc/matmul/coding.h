// Codes rows in 8 or 16 bits.
#pragma once

#include <cmath>

#include "isa/bytes.h"
#include "isa/elements.h"
#include "matmul/formats.h"

namespace SB_NS {

using sb::CodedGroup;
using sb::kGroup;
using sb::kGroupWords;
using sb::WideGroup;

constexpr int kGroupVectors = kGroup / W;

// Returns the sum of 16 signed bytes.
SB_INLINE int32_t sum_of_bytes(const int8_t* p) {
#if defined(__SSE2__)
  __m128i bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const __m128i shifted = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
  const __m128i halves = _mm_sad_epu8(shifted, _mm_setzero_si128());
  return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
#else
  int32_t total = 0;
  for (int i = 0; i < 16; ++i) total += p[i];
  return total;
#endif
}

// Returns the sum of 16 codes.
SB_INLINE int32_t sum_of_codes(const CodedGroup& group, int first) {
  return sum_of_bytes(group.codes + first);
}

SB_INLINE int32_t sum_of_codes(const WideGroup& group, int first) {
  return 256 * sum_of_bytes(group.codes + first) + sum_of_bytes(group.low + first);
}

// Fills in the sums of a group's codes.
template <class G>
SB_INLINE void sum_codes(G* out) {
  out->minus_part[0] = -sum_of_codes(*out, 0);
  out->minus_part[1] = -sum_of_codes(*out, 16);
  out->minus = out->minus_part[0] + out->minus_part[1];
  out->total = static_cast<float>(-out->minus);
}

// Stores W codes at place `i` of a group.
SB_INLINE void store_codes(CodedGroup* out, int i, VI codes) { store_bytes(out->codes + i, codes); }

SB_INLINE void store_codes(WideGroup* out, int i, VI codes) {
  const VI high = (codes + 128) >> 8;
  store_bytes(out->codes + i, high);
  store_bytes(out->low + i, codes - (high << 8));
}

template <class G>
constexpr bool is_wide = sizeof(G) > sizeof(CodedGroup);

// The largest code: both bytes of a wide one are signed.
template <class G>
constexpr float kMostCode = is_wide<G> ? 127.0f * 256.0f + 127.0f : 127.0f;

// Codes 32 values. If one is not finite, the codes are arbitrary and the scale is NaN.
template <class G>
SB_INLINE void code_group(const V (&x)[kGroupVectors], G* out) {
  VI most{};  // magnitudes are ordered as their bits are, and what is not finite is above all
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const VI magnitude = reinterpret_cast<VI>(bits(x[i]) & 0x7fffffffu);
    most = magnitude > most ? magnitude : most;
  }
  const int32_t top_bits = folded(most, [](VI a, VI b) SB_LAMBDA { return a > b ? a : b; })[0];
  float top;
  std::memcpy(&top, &top_bits, sizeof top);
  const bool is_finite = top_bits < 0x7f800000;
  const V inverse = splat(top > 0.0f ? kMostCode<G> / top : 0.0f);
  out->scale = is_finite ? top * (1.0f / kMostCode<G>) : NAN;
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const VI codes = reinterpret_cast<VI>(bits(x[i] * inverse + magic) - bits(magic));
    store_codes(out, i * W, codes);
  }
  sum_codes(out);
}

}  // namespace SB_NS
