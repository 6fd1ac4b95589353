// Codes rows in 8 bits, and reads single rows of a quantised matrix.
#pragma once

#include "bytes.h"
#include "elements.h"
#include "formats.h"

namespace SB_NS {

using sb::CodedGroup;
using sb::kGroup;
using sb::kGroupWords;

constexpr int kGroupVectors = kGroup / W;

// Codes 32 values. The codes of what is not finite are arbitrary, but the scale is NaN then.
SB_INLINE void code_group(const V (&x)[kGroupVectors], CodedGroup* out) {
  V most{}, poison{};
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    most = larger(magnitude(x[i]), most);
    poison += x[i] * 0.0f;
  }
  const float top = largest(most);
  const V inverse = splat(top > 0.0f ? 127.0f / top : 0.0f);
  out->scale = top * (1.0f / 127.0f) + sum(poison);
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  int32_t minus[2] = {0, 0};
#pragma GCC unroll 8
  for (int i = 0; i < kGroupVectors; ++i) {
    const VI codes = reinterpret_cast<VI>(bits(x[i] * inverse + magic) - bits(magic));
    const VB bytes = __builtin_convertvector(codes, VB);
    std::memcpy(out->codes + i * W, &bytes, sizeof bytes);
    minus[i * W / 16] -= sum(__builtin_convertvector(bytes, VI));
  }
  out->minus = minus[0] + minus[1];
  std::memcpy(out->minus_part, minus, sizeof minus);
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
