// Low-rank adapters (LoRA: Hu et al., 2021) of products: x A first, for the rows of each adapter, and then
// x A B is added to a product's sums while they are still in cache.
//
// Each sum is one chain of fused multiply-adds in the order of depth or rank, so a row's result depends
// on nothing but the row and its adapter.
#pragma once

#include "isa/elements.h"
#include "matmul/product.h"
#include "program/step.h"

namespace SB_NS {

using sb::kPanel;
constexpr int kHalf = kPanel / 2;  // columns that belong to one part of a product

// The place of a small product: `rows` rows from `row` on, by the columns of `panel`.
struct Spot {
  int64_t row;
  int rows;
  int64_t panel;
  const sb::Claim* claim;
  int32_t part, parts;  // of the tile's rows
};

// How many rows pass a right side together: as many as registers hold.
#if defined(__AVX512F__)
constexpr int kAdaptedRows = 8, kExpandedRows = 6;
#else
constexpr int kAdaptedRows = 4, kExpandedRows = 2;
#endif
constexpr int kHalfVectors = kHalf / W;

// sum[r][v] += a[r] b of rows that lie apart; b is steps of 16 columns, of which v counts the vectors.
template <class E, int R>
SB_INLINE void add_product(V (&sum)[R][kHalfVectors], const word* const* a, const word* b,
                           int64_t steps) {
  for (int64_t k = 0; k < steps; ++k, b += kHalf) {
    typename E::Right right[kHalfVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kHalfVectors; ++v) right[v] = E::right(b + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename E::Left left = E::broadcast(a[r] + k * E::kLeftWords);
#pragma GCC unroll 4
      for (int v = 0; v < kHalfVectors; ++v) sum[r][v] = E::mac(sum[r][v], left, right[v]);
    }
  }
}

// x A: 16 columns of one adapter, for its rows of a group.
template <class E>
static void shrink_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const sb::AdapterRows& rows = phase.adapter_rows[claim.tile / phase.panel_tiles];
  const int64_t half = claim.tile % phase.panel_tiles;
  const SbAdapter& adapter = phase.adapters[rows.adapter * phase.adapter_stride];
  if (half * kHalf >= adapter.columns) return;
  const int64_t depth = phase.src.stride / E::G;
  const auto* b = static_cast<const word*>(adapter.a) + half * depth * kHalf;
  for (int first = 0; first < rows.count; first += kAdaptedRows) {
    const int count = rows.count - first < kAdaptedRows ? rows.count - first : kAdaptedRows;
    with_rows<kAdaptedRows>(count, [&](auto n) SB_LAMBDA {
      constexpr int R = decltype(n)::value;
      const word* left[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
        left[r] = static_cast<const word*>(phase.src.data) + rows.rows[first + r] * depth;
      V sum[R][kHalfVectors] = {};
      add_product<E, R>(sum, left, b, depth);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        auto* out = static_cast<typename E::scalar*>(phase.dst.data) +
                    rows.rows[first + r] * phase.dst.stride + half * kHalf;
#pragma GCC unroll 4
        for (int v = 0; v < kHalfVectors; ++v) E::store(out + v * W, sum[r][v]);
      }
    });
  }
}

// Adds x A B of one adapter to the sums of R rows.
template <class E, int R>
SB_INLINE void expand(const sb::Phase& phase, const SbAdapter& adapter, const Spot& at,
                      const int32_t* rows, float* c) {
  const int64_t steps = adapter.rank / E::G;
  const auto* shrunk = static_cast<const typename E::scalar*>(phase.shrunk.data);
  const auto* b = static_cast<const word*>(adapter.b) + 2 * at.panel * steps * kHalf;
  for (int half = 0; half < 2; ++half, b += steps * kHalf) {
    const int first = phase.op->parts[2 * at.panel + half] * adapter.rank;
    const word* left[R];
    V sum[R][kHalfVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      left[r] = reinterpret_cast<const word*>(shrunk + rows[r] * phase.shrunk.stride + first);
#pragma GCC unroll 4
      for (int v = 0; v < kHalfVectors; ++v)
        sum[r][v] = load(c + (rows[r] - at.row) * kPanel + half * kHalf + v * W);
    }
    add_product<E, R>(sum, left, b, steps);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < kHalfVectors; ++v)
        store(c + (rows[r] - at.row) * kPanel + half * kHalf + v * W, sum[r][v]);
  }
}

// Fetches the right side of the next panel, which few rows would wait for.
constexpr int64_t kFetchedRows = 64;
SB_INLINE void fetch_after(const sb::Phase& phase, const SbAdapter& adapter, const Spot& at) {
  const int64_t bytes = static_cast<int64_t>(adapter.rank) * kPanel *
                        (phase.shape->element == SB_F32 ? 4 : 2);
  const char* next = static_cast<const char*>(adapter.b) + (at.panel + 1) * bytes;
#pragma GCC unroll 1
  for (int64_t line = 0; line < bytes; line += 64) prefetch(next + line);
}

// Adds x A B to the sums c[at.rows, kPanel] of a panel, for the rows of each adapter together.
template <class E>
static void add_adapters(const sb::Phase& phase, const Spot& at, float* c) {
  for (int32_t g = 0; g < phase.num_adapter_rows; ++g) {
    const sb::AdapterRows& group = phase.adapter_rows[g];
    const int32_t* first = group.rows;
    const int32_t* end = first + group.count;
    if (*first >= at.row + at.rows) return;  // groups are in the order of their first rows
    if (end[-1] < at.row) continue;
    const SbAdapter& adapter = phase.adapters[group.adapter * phase.adapter_stride];
    if (!adapter.b) continue;
    if (phase.rows <= kFetchedRows) fetch_after(phase, adapter, at);
    while (*first < at.row) ++first;
    while (end[-1] >= at.row + at.rows) --end;
    while (first < end) {
      const auto left = static_cast<int>(end - first);
      const int count = left < kExpandedRows ? left : kExpandedRows;
      with_rows<kExpandedRows>(count, [&](auto n) SB_LAMBDA {
        expand<E, decltype(n)::value>(phase, adapter, at, first, c);
      });
      first += count;
    }
  }
}

}  // namespace SB_NS
