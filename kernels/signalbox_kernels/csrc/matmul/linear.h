// Products with packed weights, and what is done to a panel of results while it is still in cache.
//
// A weight is panels of 32 columns, each [depth words, 32]. A tile is some panels and some rows; what
// the thread reads next is fetched to L2 while the first rows pass a panel.
#pragma once

#include <cmath>
#include <utility>

#include "matmul/product.h"
#include "program/step.h"
#include "isa/tiles.h"

namespace SB_NS {

using sb::kPanel;
using sb::kRowTile;

// The place of a small product: `rows` rows from `row` on, by the columns of `panel`.
struct Spot {
  int64_t row;
  int rows;
  int64_t panel;
  int32_t tile;
  int32_t part, parts;  // of the tile's rows
};

SB_INLINE V biased(const sb::Phase& phase, int64_t panel, int column, V x) {
  return phase.op->bias ? x + load(phase.op->bias + panel * kPanel + column) : x;
}

template <bool Add>
SB_INLINE void put(const sb::Phase& phase, const Spot& at, const float* c) {
  float* out = static_cast<float*>(phase.dst.data) + at.row * phase.dst.stride +
               phase.op->column + at.panel * kPanel;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride)
    for (int j = 0; j < kPanel; j += W) {
      const V x = biased(phase, at.panel, j, load(c + r * kPanel + j));
      store(out + j, Add ? load(out + j) + x : x);
    }
}

template <class E>
SB_INLINE void put_swiglu(const sb::Phase& phase, const Spot& at, const float* c) {
  constexpr int half = kPanel / 2;
  auto* out = static_cast<typename E::scalar*>(phase.dst.data) + at.row * phase.dst.stride;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride)
    for (int j = 0; j < half; j += W) {
      const V gate = biased(phase, at.panel, j, load(c + r * kPanel + j));
      const V up = biased(phase, at.panel, j + half, load(c + r * kPanel + j + half));
      E::store(out + at.panel * half + j, (E::G == 2 ? silu_roughly(gate) : silu(gate)) * up);
    }
}

// The best of one row's logits in this panel, whose padding is zero; a suppressed token is passed over.
static void update_best(const sb::Phase& phase, int64_t row, int64_t first, int count,
                        const float* c, sb::Best* best) {
  const SbBatch& batch = *phase.batch;
  alignas(64) float logits[kPanel];
  V poison{};
  for (int j = 0; j < kPanel; j += W) {
    poison += load(c + j) * 0.0f;  // NaN if any is not finite
    store(logits + j, load(c + j));
  }
  if (!(sum(poison) == 0.0f)) best->is_finite = false;
  for (int j = count; j < kPanel; ++j) logits[j] = -INFINITY;
  const int32_t start = row ? batch.suppressed_end[row - 1] : 0;
  for (int32_t i = start; i < batch.suppressed_end[row]; ++i) {
    const int64_t j = batch.suppressed[i] - first;
    if (j >= 0 && j < count) logits[j] = -INFINITY;
  }
  V tops = load(logits);
  for (int j = W; j < kPanel; j += W) tops = larger(tops, load(logits + j));
  const float top = largest(tops);
  if (!(top > best->value)) return;
  for (int j = 0; j < count; ++j)
    if (logits[j] == top) {
      *best = {top, static_cast<int32_t>(first + j), best->is_finite};
      return;
    }
}

SB_INLINE void put_logits(const sb::Phase& phase, const Spot& at, const float* c) {
  const SbBatch& batch = *phase.batch;
  const int64_t vocab = phase.op->n, first = at.panel * kPanel;
  const int count = static_cast<int>(vocab - first < kPanel ? vocab - first : kPanel);
  for (int r = 0; r < at.rows; ++r) {
    const int64_t row = at.row + r;
    update_best(phase, row, first, count, c + r * kPanel,
                phase.best + at.tile * phase.rows + row);
    const int32_t slot = batch.logits_of_row[row];
    if (slot >= 0)
      std::memcpy(batch.logits + slot * vocab + first, c + r * kPanel, 4 * static_cast<size_t>(count));
  }
}

template <class E>
SB_INLINE void finish(const sb::Phase& phase, const Spot& at, const float* c) {
  if (phase.op->kind == SB_HEAD) return put_logits(phase, at, c);
  if (phase.op->mode == SB_ADD) return put<true>(phase, at, c);
  if (phase.op->mode == SB_SWIGLU) return put_swiglu<E>(phase, at, c);
  put<false>(phase, at, c);
}

// All columns of a panel for up to kRowTile rows; as wide as the registers allow.
template <class E, bool Ahead>
static void panel_product(const word* a, int64_t a_stride, const word* b, int64_t depth, int rows,
                          float* c, const word* next) {
#if defined(__AVX512F__)
  constexpr int most = kRowTile;
#else
  constexpr int most = 4;
#endif
  for (int done = 0; done < rows; done += most)
    for (int j = 0; j < kPanel; j += 2 * W)
      with_rows<most>(rows - done < most ? rows - done : most, [=](auto count) SB_LAMBDA {
        constexpr int R = decltype(count)::value;
        const Columns<2> columns{{b + j, b + j + W}, kPanel};
        multiply<E, R, 2>(a + done * a_stride, a_stride, columns, depth, c + done * kPanel + j,
                          kPanel, [=](int64_t k) SB_LAMBDA {
                            if (!Ahead) return;
                            prefetch_l2(next + j + k * kPanel);
                            if (W == 16) prefetch_l2(next + j + k * kPanel + W);
                          });
      });
}

// Goes over a tile panel by panel; all its rows, in balanced parts of at most `Most`, pass a panel
// before the next one. f(at, panel, next) computes a part: 32 rows by twelve are 11, 11 and 10. All
// parts but the last are multiples of `Unit` rows; `next` is null for all but the first.
template <int Most, int Unit = 1, class F>
SB_INLINE void over_parts(const sb::Phase& phase, const sb::Claim& claim, F&& f) {
  const int32_t tile = claim.tile;
  const auto* weight = static_cast<const char*>(phase.op->weight);
  const int64_t first_row = tile / phase.panel_tiles * static_cast<int64_t>(phase.rows_per_tile);
  const int64_t left = phase.rows - first_row;
  const int64_t count = left < phase.rows_per_tile ? left : phase.rows_per_tile;
  const int64_t first = tile % phase.panel_tiles * static_cast<int64_t>(phase.panels_per_tile);
  const int64_t end =
      first + phase.panels_per_tile < phase.panels ? first + phase.panels_per_tile : phase.panels;
  const auto parts = static_cast<int32_t>((count + Most - 1) / Most);
  const auto start = [=](int64_t part) SB_LAMBDA {
    return part < parts ? sb::round_up(count * part / parts, Unit) : count;
  };
  for (int64_t panel = first; panel < end; ++panel) {
    const char* here = weight + panel * phase.panel_bytes;
    const char* next = panel + 1 < end ? here + phase.panel_bytes : claim.ahead;
    for (int32_t part = 0; part < parts; ++part) {
      const int64_t row = start(part), row_end = start(part + 1);
      f(Spot{first_row + row, static_cast<int>(row_end - row), panel, tile, part, parts}, here, next);
    }
  }
}

#if defined(__AMX_BF16__)
// A part that is multiplied but not yet finished. It is finished a few rows at a time while the
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
    finish<Bf16>(phase, some, sums);
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

// Computes 32 rows at once; the last ones together with the unused rows behind them.
template <bool IsOnePart>
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
    const auto rows_a_step = static_cast<int>((last.at.rows + steps - 1) / steps);
    Fetch<IsOnePart> fetch(at, steps, b, next);
    const auto meanwhile = [&](int64_t) SB_LAMBDA {
      fetch.step();
      last.finish_rows(rows_a_step);
    };
    if (at.rows > kTileRows)
      tile_product<true>(left, a_stride, b, depth, c, meanwhile);
    else
      tile_product<false>(left, a_stride, b, depth, c, meanwhile);
    last.at = at;
    last.sums = c;
    std::swap(c, other);
  });
  last.finish_rows(last.at.rows);
}

static void tiled_linear(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.rows > 2 * kTileRows) return tiled_rows<false>(phase, claim);
  tiled_rows<true>(phase, claim);
}
#endif

template <class E>
static void linear_tile(const sb::Phase& phase, const sb::Claim& claim) {
#if defined(__AMX_BF16__)
  if constexpr (E::G == 2) return tiled_linear(phase, claim);
#endif
  auto* c = reinterpret_cast<float*>(claim.scratch);
  const auto* a = static_cast<const word*>(phase.src.data);
  const int64_t a_stride = phase.src.stride / E::G, depth = phase.depth / E::G;
  over_parts<kRowTile>(phase, claim, [&](const Spot& at, const char* panel, const char* next) {
    const auto* b = reinterpret_cast<const word*>(panel);
    const word* left = a + at.row * a_stride;
    if (!at.part && next)
      panel_product<E, true>(left, a_stride, b, depth, at.rows, c,
                             reinterpret_cast<const word*>(next));
    else
      panel_product<E, false>(left, a_stride, b, depth, at.rows, c, b);
    finish<E>(phase, at, c);
  });
}

}  // namespace SB_NS
