// RMSNorm of groups of columns, with a gate before or behind it.
#pragma once

#include "attention/rows.h"

namespace SB_NS {

SB_INLINE void norm_group(float* x, const float* weight, int64_t size, float eps) {
  V squares{};
  for (int64_t i = 0; i < size; i += W) squares = fused(load(x + i), load(x + i), squares);
  const V factor = splat(1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps));
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
    if (op.mode) multiply();
    for (int64_t i = 0; i < width; i += op.n) norm_group(x + i, weight + i, op.n, op.eps);
    if (!op.mode) multiply();
    put_row<E>(phase, row, padded, [=](int64_t i) SB_LAMBDA { return load(x + i); });
  }
}

}  // namespace SB_NS
