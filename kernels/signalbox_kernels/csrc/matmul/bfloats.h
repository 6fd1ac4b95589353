// Products of bfloat16, with weights in pairs along the sum. Codes of floats are widened and rounded to such
// pairs, a panel at a time, which all rows of a tile pass in L2.
#pragma once

#include <type_traits>
#include <utility>

#include "isa/tiles.h"
#include "matmul/floats.h"
#include "matmul/linear.h"
#include "matmul/product.h"

#if defined(__AVX512BF16__)

namespace SB_NS {

// Both rounded to bfloat16, in pairs.
SB_INLINE VU rounded_pairs(V even, V odd) {
  const auto halves = [](V v) SB_LAMBDA {
    const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    __m256i h;
    std::memcpy(&h, &rounded, sizeof h);
    return reinterpret_cast<VU>(_mm512_maskz_cvtepu16_epi32(0xffff, h));
  };
  return halves(even) | halves(odd) << 16;
}

// A panel in pairs: itself, or scratch that the first part of the rows fills. `next` is fetched
// meanwhile, if there is one.
template <class S>
static const word* in_pairs(const sb::Phase& phase, const Spot& at, const char* panel,
                            const char* next) {
  if constexpr (std::is_same_v<S, sb::Bfloat16>) return reinterpret_cast<const word*>(panel);
  auto* pairs = reinterpret_cast<word*>(at.claim->scratch + sb::kProductScratch);
  if (at.part) return pairs;
  word* out = pairs;
  for (int64_t g = 0; g < phase.depth / kGroup; ++g, out += kGroup / 2 * kPanel) {
    fetch_group<S>(panel, g, next);
#pragma GCC unroll 1
    for (int column = 0; column < kPanel; column += W) {
      V even{};
      widen(S{}, panel, g, column, [&](int i, V x) SB_LAMBDA {
        if (i % 2 == 0) {
          even = x;
          return;
        }
        const VU both = rounded_pairs(even, x);
        std::memcpy(out + i / 2 * kPanel + column, &both, sizeof both);
      });
    }
  }
  return pairs;
}

#if defined(__AMX_BF16__)
// A part that is multiplied but not yet finished. It is finished some rows at a time while the
// matrix unit computes the next part.
struct Unfinished {
  const sb::Phase& phase;
  Spot at{};
  const float* sums = nullptr;

  SB_LAMBDA void finish_rows(int count) {
    if (count > at.rows) count = at.rows;
    if (!count) return;
    Spot some = at;
    some.rows = count;
    finish_sums<Bf16>(phase, some, sums);
    at.row += count;
    at.rows -= count;
    sums += count * kPanel;
  }
};

// Prefetches the memory that is read next, a few lines at a time: a burst would fill the buffers in
// which cache misses wait.
template <bool IsOnePart>
struct Fetch {
  const char* next;  // of the next panel, or null
  const word* soon;  // of this one: after this step along the sum
  int lines;         // a step

  Fetch(const Spot& at, int64_t steps, const word* panel, const char* next_panel)
      : next(next_panel),
        soon(panel + kTileWords * kPanel),
        lines(next_panel ? (2 * kTileWords + at.parts - 1) / at.parts : 0) {
    next += at.part * steps * lines * 64;
  }

  SB_LAMBDA void step() {
#pragma GCC unroll 1
    for (int line = 0; line < lines; ++line, next += 64) {
      prefetch_l2(next);
      if (!IsOnePart) continue;
      prefetch(soon);
      soon += kTileWords;
    }
  }
};

// Computes 32 rows at once; the last ones together with the unused rows behind them. Rows are finished
// every so many steps along the sum: a call costs more than a few rows do, but while few rows wait for
// memory it spreads what they fetch.
template <class S, bool IsOnePart, int Every>
static void tiled_rows(const sb::Phase& phase, const sb::Claim& claim) {
  auto* c = reinterpret_cast<float*>(claim.scratch);
  auto* other = c + 2 * kTileRows * kPanel;
  const auto* a = static_cast<const word*>(phase.src.data);
  const int64_t a_stride = phase.src.stride / Bf16::G, depth = phase.depth / Bf16::G;
  const int64_t steps = depth / kTileWords;
  Unfinished last{phase};
  use_tiles(product_config(IsOnePart ? phase.rows : 2 * kTileRows));
  over_parts<2 * kTileRows, kTileRows>(phase, claim, [&](const Spot& at, const char* panel,
                                                         const char* next) {
    const word* b = in_pairs<S>(phase, at, panel, next);
    const word* left = a + at.row * a_stride;
    const auto rows_at_once = static_cast<int>((last.at.rows * Every + steps - 1) / steps);
    Fetch<IsOnePart> fetch(at, steps, b, std::is_same_v<S, sb::Bfloat16> ? next : nullptr);
    const auto meanwhile = [&](int64_t k) SB_LAMBDA {
      fetch.step();
      if (k % (Every * kTileWords) == 0) last.finish_rows(rows_at_once);
    };
    if (at.rows > kTileRows)
      tile_product<true>(left, a_stride, b, depth, c, meanwhile);
    else
      tile_product<false>(left, a_stride, b, depth, c, meanwhile);
    if (phase.adapters) add_adapters<Bf16>(phase, at, c);
    last.at = at;
    last.sums = c;
    std::swap(c, other);
  });
  last.finish_rows(last.at.rows);
}

template <class S>
static void bfloat_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.rows > 2 * kTileRows) return tiled_rows<S, false, 4>(phase, claim);
  if (phase.rows > kTileRows) return tiled_rows<S, true, 4>(phase, claim);
  tiled_rows<S, true, 1>(phase, claim);
}
#else
// All columns of a panel for up to kRowTile rows.
template <bool Ahead>
static void panel_product(const word* a, int64_t a_stride, const word* b, int64_t depth, int rows,
                          float* c, const word* next) {
  with_rows<kRowTile>(rows, [=](auto count) SB_LAMBDA {
    const Columns<2, Bf16> columns{{b, b + W}, kPanel};
    multiply<Bf16, decltype(count)::value, 2>(a, a_stride, columns, depth, c, kPanel,
                                              [=](int64_t k) SB_LAMBDA {
                                                if (!Ahead) return;
                                                prefetch_l2(next + k * kPanel);
                                                prefetch_l2(next + k * kPanel + W);
                                              });
  });
}

template <class S>
static void bfloat_tile(const sb::Phase& phase, const sb::Claim& claim) {
  auto* c = reinterpret_cast<float*>(claim.scratch);
  const auto* a = static_cast<const word*>(phase.src.data);
  const int64_t a_stride = phase.src.stride / Bf16::G, depth = phase.depth / Bf16::G;
  over_parts<kRowTile>(phase, claim, [&](const Spot& at, const char* panel, const char* next) {
    const word* b = in_pairs<S>(phase, at, panel, next);
    const word* left = a + at.row * a_stride;
    if (std::is_same_v<S, sb::Bfloat16> && !at.part && next)
      panel_product<true>(left, a_stride, b, depth, at.rows, c, reinterpret_cast<const word*>(next));
    else
      panel_product<false>(left, a_stride, b, depth, at.rows, c, b);
    finish<Bf16>(phase, at, c);
  });
}
#endif

}  // namespace SB_NS

#endif
