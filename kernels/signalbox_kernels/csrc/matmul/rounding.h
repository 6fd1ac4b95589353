// Rounds rows to codes of 8 bits as a checkpoint prescribes: with a scale for each row or group of columns,
// or a static one.
#pragma once

#include <cfloat>
#include <cmath>

#include "isa/elements.h"
#include "matmul/coding.h"
#include "program/step.h"

namespace SB_NS {

// A value is (code - zero) * scale. The scale is NaN where a value is not finite.
struct Step {
  float scale, zero;
};

SB_INLINE V clamped(V x, float low, float high) {
  const V raised = select(x < splat(low), splat(low), x);
  return select(raised > splat(high), splat(high), raised);
}

// To the nearest whole number, ties to even; magnitudes are below 2^22.
SB_INLINE V nearest(V x) {
  const V magic = splat(12582912.0f);  // 1.5 * 2^23
  return (x + magic) - magic;
}

// To the nearest value of E4M3, ties to even.
SB_INLINE V nearest_e4m3(V x) {
  const V size = clamped(magnitude(x), 0.0f, 448.0f);
  const VU normal = (bits(size) + 0x7ffffu + (bits(size) >> 20 & 1u)) & 0xfff00000u;
  const V magic = splat(16384.0f);  // its last place is 2^-9, that of subnormal codes
  const V value = select(size < splat(0x1p-6f), (size + magic) - magic, from_bits(normal));
  return from_bits(bits(value) | (bits(x) & 0x80000000u));
}

SB_INLINE V to_codes(int32_t rounding, V x, const Step& step) {
  const V scaled = x / splat(step.scale) + splat(step.zero);
  if (rounding == SB_ROUND_E4M3) return nearest_e4m3(scaled);
  return nearest(clamped(scaled, -128.0f, 127.0f));
}

// The step of columns [first, end) of the row that x(i) gives.
template <class F>
SB_INLINE Step step_of(const SbOp& op, int64_t first, int64_t end, F&& x) {
  V least{}, most{};
  VI top{};  // magnitudes are ordered as their bits are, and what is not finite is above all
  for (int64_t i = first; i < end; i += W) {
    const V v = x(i);
    const VI size = reinterpret_cast<VI>(bits(v) & 0x7fffffffu);
    top = size > top ? size : top;
    least = select(v < least, v, least);
    most = larger(most, v);
  }
  if (folded(top, [](VI a, VI b) SB_LAMBDA { return a > b ? a : b; })[0] >= 0x7f800000) return {NAN, 0.0f};
  if (op.scale != 0.0f) return {op.scale, op.zero};
  const float low = -largest(-least), high = largest(most);
  if (op.rounding != SB_ROUND_INT8_WITH_ZERO) {
    const float scale = (high > -low ? high : -low) / (op.rounding == SB_ROUND_INT8 ? 127.5f : 448.0f);
    return {scale != 0.0f ? scale : FLT_EPSILON, 0.0f};
  }
  const float range = (high - low) / 255.0f, scale = range != 0.0f ? range : FLT_EPSILON;
  return {scale, std::nearbyint(std::fmin(-128.0f - low / scale, 127.0f))};
}

// Writes columns [first, end) of a row as codes with one scale.
template <class F>
SB_INLINE void put_codes(const sb::Phase& phase, int64_t row, int64_t first, int64_t end, const Step& step,
                         F&& x) {
  auto* out = reinterpret_cast<CodedGroup*>(static_cast<char*>(phase.dst.data) + row * phase.dst.stride) +
              first / kGroup;
  const V magic = splat(12582912.0f);
  for (int64_t i = first; i < end; i += kGroup, ++out) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < kGroup; j += W) {
      const V codes = to_codes(SB_ROUND_INT8, x(i + j), step);
      store_bytes(out->codes + j, reinterpret_cast<VI>(bits(codes + magic) - bits(magic)));
    }
    out->scale = step.scale;
    sum_codes(out);
  }
}

// Writes a row's rounded elements, or its codes, of the vectors that x(i) gives.
template <class E, class F>
SB_INLINE void put_rounded(const sb::Phase& phase, int64_t row, int64_t padded, F&& x) {
  const SbOp& op = *phase.op;
  const int64_t size = op.group ? op.group : padded;
  for (int64_t first = 0; first < padded; first += size) {
    const int64_t end = first + size < padded ? first + size : padded;
    const Step step = step_of(op, first, end, x);
    if (phase.dst_code_bytes) {
      put_codes(phase, row, first, end, step, x);
      continue;
    }
    auto* out = static_cast<typename E::scalar*>(phase.dst.data) + row * phase.dst.stride;
    for (int64_t i = first; i < end; i += W) {
      const V code = to_codes(op.rounding, x(i), step);
      E::store(out + i, (code - splat(step.zero)) * splat(step.scale));
    }
  }
}

}  // namespace SB_NS
