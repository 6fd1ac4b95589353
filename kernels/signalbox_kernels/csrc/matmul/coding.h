// Codes rows in 8 bits, and reads single rows of a quantised matrix.
#pragma once

#include <cmath>

#include "isa/bytes.h"
#include "isa/elements.h"
#include "matmul/formats.h"

namespace SB_NS {

using sb::CodedGroup;
using sb::kGroup;
using sb::kGroupWords;

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

// Codes 32 values. If one is not finite, the codes are arbitrary and the scale is NaN.
SB_INLINE void code_group(const V (&x)[kGroupVectors], CodedGroup* out) {
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
  const V inverse = splat(top > 0.0f ? 127.0f / top : 0.0f);
  out->scale = is_finite ? top * (1.0f / 127.0f) : NAN;
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const VI codes = reinterpret_cast<VI>(bits(x[i] * inverse + magic) - bits(magic));
    store_bytes(out->codes + i * W, codes);
  }
  out->minus_part[0] = -sum_of_bytes(out->codes);
  out->minus_part[1] = -sum_of_bytes(out->codes + 16);
  out->minus = out->minus_part[0] + out->minus_part[1];
  out->total = static_cast<float>(-out->minus);
}

// One value of a packed group: column `column`, place `i` along the sum.
template <class Q>
SB_INLINE float coded_value(const char* group, int column, int i) {
  const auto byte = [&](int w) SB_LAMBDA {
    return static_cast<uint8_t>(group[(w * sb::kPanel + column) * 4 + i % 4]);
  };
  const int w = i / 4, half = kGroupWords / 2;
  int code = Q::Bits == 8 ? byte(w) : byte(w % half) >> (w / half * 4) & 15;
  if (Q::Bits == 6) code |= (byte(half + w / 4) >> (w % 4 * 2) & 3) << 4;
  const int64_t at = 2 * (i / Q::Part * sb::kPanel + column);
  const float scale = half_to_float(group + Q::scales + at);
  if (Q::HasMinimum) return static_cast<float>(code) * scale + half_to_float(group + Q::minima + at);
  return static_cast<float>(code - (1 << Q::offset_shift)) * scale;
}

// Row `row` of a packed matrix.
template <class Q>
static void read_row(const char* packed, int64_t row, int64_t groups, float* out) {
  packed += row / sb::kPanel * groups * Q::bytes;
  for (int64_t g = 0; g < groups; ++g, packed += Q::bytes)
    for (int i = 0; i < kGroup; ++i)
      out[g * kGroup + i] = coded_value<Q>(packed, static_cast<int>(row % sb::kPanel), i);
}

}  // namespace SB_NS
