// RMSNorm of groups of columns, with a gate before or behind it.
#pragma once

#include "attention/rows.h"

namespace SB_NS {

SB_INLINE float squares_of(const float* x, int64_t size) {
  V squares{};
  for (int64_t i = 0; i < size; i += W) squares = fused(load(x + i), load(x + i), squares);
  return sum(squares);
}

// Norms columns of a group, which has `squares` in all of its `count` columns.
SB_INLINE void norm_group(float* x, const float* weight, int64_t size, float squares, int64_t count, float eps) {
  const V factor = splat(1.0f / std::sqrt(squares / static_cast<float>(count) + eps));
  for (int64_t i = 0; i < size; i += W) store(x + i, load(x + i) * factor * load(weight + i));
}

template <class E>
static void gated_norm_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const SbOp& op = *phase.op;
  const Range range = rows_of_tile(phase, claim.tile);
  const int64_t padded = phase.src.stride, width = int64_t{op.n} * op.num_heads;
  const auto* weight = static_cast<const float*>(op.weight);
  for (int64_t row = range.first; row < range.end; ++row) {
    float* x = static_cast<float*>(phase.src.data) + row * padded;
    const float* gate = static_cast<const float*>(phase.gate.data) + row * phase.gate.stride + op.column;
    const auto multiply = [=]() SB_LAMBDA {
      for (int64_t i = 0; i < width; i += W) {
        const V z = load(gate + i);
        store(x + i, load(x + i) * gated(z, z));
      }
    };
    if (op.mode == SB_GATED_BEFORE || op.mode == SB_GATED_SQUARES) multiply();
    if (op.mode == SB_GATED_SQUARES) {
      float* out = static_cast<float*>(phase.dst.data) + row * phase.dst.stride;
      std::memset(out, 0, sizeof(float) * static_cast<size_t>(phase.dst.stride));
      for (int32_t group = 0; group < op.num_heads; ++group) out[group] = squares_of(x + group * int64_t{op.n}, op.n);
      continue;
    }
    for (int32_t group = 0; group < op.num_heads; ++group) {
      const int64_t i = group * int64_t{op.n};
      const float squares = op.mode == SB_NORMED_BY_SQUARES ? gate[group] : squares_of(x + i, op.n);
      norm_group(x + i, weight + i, op.n, squares, op.n * int64_t{phase.num_shares}, op.eps);
    }
    if (op.mode == SB_GATED_AFTER) multiply();
    put_row<E>(phase, row, padded, [=](int64_t i) SB_LAMBDA { return load(x + i); });
  }
}

}  // namespace SB_NS
