// Products in float32 with weights of any storage.
//
// A weight that is no float32 is widened, so many steps of the sum at a time that they stay in L1, and
// all rows of the part pass them there. Each element is one chain of fused multiply-adds along the
// sum, whatever the storage and the rows beside it, so its bits are those of the expanded weight.
#pragma once

#include "matmul/linear.h"
#include "matmul/product.h"
#include "matmul/values.h"

namespace SB_NS {

constexpr int kSteps = sb::kWidened;  // along the sum

// The most rows that pass a panel which is widened in registers. Blocks cost more to widen than what
// memory in L1 costs for a third row; floats of 16 bits cost less.
template <class S>
constexpr int direct_rows() {
  if (S::fetched < 2 * kGroup * kPanel) return 2;
  return W == 16 ? 8 : 3;
}

// Adds `steps` steps to c[rows, kPanel]; as wide as the registers allow. `next` is fetched to L2
// meanwhile, a line for each of b, if there is one.
static void add_steps(const float* a, int64_t a_stride, const float* b, int64_t steps, int rows,
                      float* c, const char* next) {
#if defined(__AVX512F__)
  constexpr int most = kRowTile;
#else
  constexpr int most = 4;
#endif
  const int parts = (rows + most - 1) / most;
  for (int part = 0; part < parts; ++part) {  // balanced: 32 rows by twelve are 10, 11 and 11
    const int first = rows * part / parts, count = rows * (part + 1) / parts - first;
    const bool is_ahead = next && !part;
    for (int j = 0; j < kPanel; j += 2 * W)
      with_rows<most>(count, [=](auto n) SB_LAMBDA {
        constexpr int R = decltype(n)::value;
        const auto* right = reinterpret_cast<const word*>(b + j);
        multiply<F32, R, 2, true>(
            reinterpret_cast<const word*>(a + first * a_stride), a_stride,
            Columns<2, F32>{{right, right + W}, kPanel}, steps, c + first * kPanel + j, kPanel,
            [=](int64_t k) SB_LAMBDA {
              if (!is_ahead) return;
              prefetch_l2(next + 4 * (j + k * kPanel));
              if (W == 16) prefetch_l2(next + 4 * (j + k * kPanel + W));
            });
      });
  }
}

// Fetches what is read after group g of a panel, and the same group of `next`, if there is one.
template <class S>
SB_INLINE void fetch_group(const char* panel, int64_t g, const char* next) {
  if (!next) return;
#pragma GCC unroll 1
  for (int64_t line = g * S::fetched; line < (g + 1) * S::fetched; line += 64) {
    prefetch(panel + 4 * S::fetched + line);
    prefetch_l2(next + line);
  }
}

// Widens groups [first, first + count) of a panel.
template <class S>
static void widen_groups(const char* panel, int64_t first, int64_t count, float* out,
                         const char* next) {
  for (int64_t g = first; g < first + count; ++g, out += kGroup * kPanel) {
    fetch_group<S>(panel, g, next);
#pragma GCC unroll 1
    for (int column = 0; column < kPanel; column += W)
      widen(S{}, panel, g, column,
            [=](int i, V x) SB_LAMBDA { store(out + i * kPanel + column, x); });
  }
}

// c[R, kPanel] of a panel that is widened in registers.
template <class S, int R>
static void widened_product(const float* a, int64_t a_stride, const char* panel, int64_t groups,
                            float* c, const char* next) {
  V sum[R][kPanel / W];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanel / W; ++v) sum[r][v] = V{};
  for (int64_t g = 0; g < groups; ++g, a += kGroup) {
    fetch_group<S>(panel, g, next);
#pragma GCC unroll 8
    for (int v = 0; v < kPanel / W; ++v)
      widen(S{}, panel, g, v * W, [&](int i, V x) SB_LAMBDA {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][v] = fused(splat(a[r * a_stride + i]), x, sum[r][v]);
      });
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kPanel / W; ++v) store(c + r * kPanel + v * W, sum[r][v]);
}

template <class S>
static void float_tile(const sb::Phase& phase, const sb::Claim& claim) {
  constexpr bool is_wide = S::fetched == 4 * kGroup * kPanel;  // as it is
  auto* c = reinterpret_cast<float*>(claim.scratch);
  auto* values = c + sb::kRowsAtOnce * kPanel;
  const auto* a = static_cast<const float*>(phase.src.data);
  const int64_t a_stride = phase.src.stride;
  over_parts<sb::kRowsAtOnce>(phase, claim, [&](const Spot& at, const char* panel,
                                                const char* next) {
    const char* ahead = at.part ? nullptr : next;
    if constexpr (!is_wide)
      if (at.rows <= direct_rows<S>()) {
        with_rows<direct_rows<S>()>(at.rows, [&](auto n) SB_LAMBDA {
          widened_product<S, decltype(n)::value>(a + at.row * a_stride, a_stride, panel,
                                                 phase.depth / kGroup, c, ahead);
        });
        return finish<F32>(phase, at, c);
      }
    std::memset(c, 0, sizeof(float) * static_cast<size_t>(at.rows) * kPanel);
    for (int64_t k = 0; k < phase.depth; k += kSteps) {
      const int64_t steps = phase.depth - k < kSteps ? phase.depth - k : kSteps;
      const float* b = values;
      if constexpr (is_wide)
        b = reinterpret_cast<const float*>(panel) + k * kPanel;
      else
        widen_groups<S>(panel, k / kGroup, steps / kGroup, values, ahead);
      add_steps(a + at.row * a_stride + k, a_stride, b, steps, at.rows, c,
                is_wide && ahead ? ahead + 4 * k * kPanel : nullptr);
    }
    finish<F32>(phase, at, c);
  });
}

}  // namespace SB_NS
