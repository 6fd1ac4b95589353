// Products of bfloat16, with weights in pairs along the sum.
#pragma once

#include <utility>

#include "isa/tiles.h"
#include "matmul/linear.h"
#include "matmul/product.h"

#if defined(__AVX512BF16__)

namespace SB_NS {

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
template <bool IsOnePart, int Every>
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
    const auto* b = reinterpret_cast<const word*>(panel);
    const word* left = a + at.row * a_stride;
    const auto rows_at_once = static_cast<int>((last.at.rows * Every + steps - 1) / steps);
    Fetch<IsOnePart> fetch(at, steps, b, next);
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

static void bfloat_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.rows > 2 * kTileRows) return tiled_rows<false, 4>(phase, claim);
  if (phase.rows > kTileRows) return tiled_rows<true, 4>(phase, claim);
  tiled_rows<true, 1>(phase, claim);
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

static void bfloat_tile(const sb::Phase& phase, const sb::Claim& claim) {
  auto* c = reinterpret_cast<float*>(claim.scratch);
  const auto* a = static_cast<const word*>(phase.src.data);
  const int64_t a_stride = phase.src.stride / Bf16::G, depth = phase.depth / Bf16::G;
  over_parts<kRowTile>(phase, claim, [&](const Spot& at, const char* panel, const char* next) {
    const auto* b = reinterpret_cast<const word*>(panel);
    const word* left = a + at.row * a_stride;
    if (!at.part && next)
      panel_product<true>(left, a_stride, b, depth, at.rows, c, reinterpret_cast<const word*>(next));
    else
      panel_product<false>(left, a_stride, b, depth, at.rows, c, b);
    finish<Bf16>(phase, at, c);
  });
}
#endif

}  // namespace SB_NS

#endif
