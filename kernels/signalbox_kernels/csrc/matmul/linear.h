// What all products share: how a tile is gone over, and what is done to a panel of results while it is
// still in cache.
//
// A weight is panels of 32 columns. A tile is some panels and some rows; what the thread reads next is
// fetched to L2 while the first rows pass a panel.
#pragma once

#include <cmath>

#include "isa/elements.h"
#include "matmul/adapters.h"
#include "program/step.h"

namespace SB_NS {

using sb::kRowTile;

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

// The function of a product; the rough one is for what is rounded to bfloat16 next.
template <class E>
SB_INLINE V activated(const sb::Phase& phase, V x) {
  switch (phase.op->activation) {
    case SB_GELU: return gelu(x);
    case SB_GELU_TANH: return gelu_tanh(x);
    case SB_RELU: return larger(V{}, x);
    case SB_RELU_SQUARED: return larger(V{}, x) * larger(V{}, x);
    case SB_IDENTITY: return x;
    default: return E::G == 2 ? gated_roughly(x, x) : gated(x, x);
  }
}

// What a gate and what it is for become together.
template <class E>
SB_INLINE V joined(const sb::Phase& phase, V gate, V up) {
  if (phase.op->activation != SB_CLAMPED) return activated<E>(phase, gate) * up;
  const V least = splat(-phase.op->limit);
  const V x = -larger(least, -gate), z = phase.op->scale * x;
  return (E::G == 2 ? gated_roughly(x, z) : gated(x, z)) * (1.0f - larger(least, -larger(least, up)));
}

template <class E>
SB_INLINE void put_activated(const sb::Phase& phase, const Spot& at, const float* c) {
  auto* out = static_cast<typename E::scalar*>(phase.dst.data) + at.row * phase.dst.stride + at.panel * kPanel;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride)
    for (int j = 0; j < kPanel; j += W)
      E::store(out + j, activated<E>(phase, biased(phase, at.panel, j, load(c + r * kPanel + j))));
}

template <class E>
SB_INLINE void put_interleaved(const sb::Phase& phase, const Spot& at, const float* c) {
  constexpr int half = kPanel / 2;
  auto* out = static_cast<typename E::scalar*>(phase.dst.data) + at.row * phase.dst.stride;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride)
    for (int j = 0; j < half; j += W) {
      const V gate = biased(phase, at.panel, j, load(c + r * kPanel + j));
      const V up = biased(phase, at.panel, j + half, load(c + r * kPanel + j + half));
      E::store(out + at.panel * half + j, joined<E>(phase, gate, up));
    }
}

// The same of a gate that another product has stored.
template <class E>
SB_INLINE void put_gated(const sb::Phase& phase, const Spot& at, const float* c) {
  auto* out = static_cast<typename E::scalar*>(phase.dst.data) + at.row * phase.dst.stride;
  const auto* gate = static_cast<const float*>(phase.gate.data) + at.row * phase.gate.stride;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride, gate += phase.gate.stride)
    for (int j = 0; j < kPanel; j += W) {
      const V up = biased(phase, at.panel, j, load(c + r * kPanel + j));
      const V x = load(gate + at.panel * kPanel + j);
      E::store(out + at.panel * kPanel + j, joined<E>(phase, x, up));
    }
}

// The function of a product times factors that are not of products.
template <class E>
SB_INLINE void put_modulated(const sb::Phase& phase, const Spot& at, const float* c) {
  auto* out = static_cast<typename E::scalar*>(phase.dst.data) + at.row * phase.dst.stride + at.panel * kPanel;
  const auto* factors = static_cast<const float*>(phase.gate.data) + at.row * phase.gate.stride +
                        phase.op->column + at.panel * kPanel;
  for (int r = 0; r < at.rows; ++r, out += phase.dst.stride, factors += phase.gate.stride)
    for (int j = 0; j < kPanel; j += W)
      E::store(out + j, activated<E>(phase, biased(phase, at.panel, j, load(c + r * kPanel + j))) * load(factors + j));
}

// The best of one row's logits in this panel, whose padding is zero; a suppressed token is passed over.
static void update_best(const sb::Phase& phase, int64_t row, int64_t first, int count,
                        const float* c, sb::Best* best) {
  const SbBatch& batch = *phase.batch;
  alignas(64) float logits[kPanel];
  V poison{};
  for (int j = 0; j < kPanel; j += W) {
    poison = fused(load(c + j), V{}, poison);  // NaN if any is not finite
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
  const int64_t vocab = phase.shape->vocab_size, column = at.panel * kPanel;
  const int64_t first = phase.op->first_token + column, left = phase.op->n - column;
  const float cap = phase.op->cap;
  const int count = static_cast<int>(left < kPanel ? left : kPanel);
  for (int r = 0; r < at.rows; ++r) {
    const int64_t row = at.row + r;
    alignas(64) float of_cap[kPanel];
    const float* logits = cap > 0.0f ? of_cap : c + r * kPanel;
    for (int j = 0; cap > 0.0f && j < kPanel; j += W) store(of_cap + j, capped(load(c + r * kPanel + j), cap));
    update_best(phase, row, first, count, logits, phase.best + at.claim->tile * phase.rows + row);
    const int32_t slot = batch.logits_of_row[row];
    if (slot >= 0)
      std::memcpy(batch.logits + slot * vocab + first, logits, 4 * static_cast<size_t>(count));
  }
}

// Does the rest of the op with a panel's sums, c[at.rows, kPanel], which it may change.
using Finish = void (*)(const sb::Phase& phase, const Spot& at, float* c);

template <class E>
static void finish_sums(const sb::Phase& phase, const Spot& at, const float* c) {
  if (!at.claim->may_write(phase)) return;
  if (phase.op->kind == SB_HEAD) return put_logits(phase, at, c);
  if (phase.op->mode == SB_ADD) return put<true>(phase, at, c);
  if (phase.op->mode == SB_GATED) return put_interleaved<E>(phase, at, c);
  if (phase.op->mode == SB_GATE) return put_gated<E>(phase, at, c);
  if (phase.op->mode == SB_ACTIVATE) return put_activated<E>(phase, at, c);
  if (phase.op->mode == SB_MODULATE) return put_modulated<E>(phase, at, c);
  put<false>(phase, at, c);
}

template <class E>
static void finish(const sb::Phase& phase, const Spot& at, float* c) {
  if (phase.adapters) add_adapters<E>(phase, at, c);
  finish_sums<E>(phase, at, c);
}

// Goes over a tile panel by panel; all its rows, in balanced parts of at most `Most`, pass a panel
// before the next one. f(at, panel, next) computes a part: 32 rows by twelve are 11, 11 and 10. All
// parts but the last are multiples of `Unit` rows. The thread reads `next`, unless null, after the panel.
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
      f(Spot{first_row + row, static_cast<int>(row_end - row), panel, &claim, part, parts}, here, next);
    }
  }
}

}  // namespace SB_NS
