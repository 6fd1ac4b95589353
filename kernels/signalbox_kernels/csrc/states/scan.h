// Recurrent states that every token changes: the gated delta rule (Yang et al., 2024) and Mamba-2's selective
// state (Dao and Gu, 2024).
//
// Tokens come one by one, in float32. A column of a head's state depends on no other, so columns are divided among
// vectors and threads, and a row's bits depend on its position alone. A state is read where its sequence has it and
// written where the run leaves it: the first token's update goes from one to the other, and nothing else is copied.
#pragma once

#include <algorithm>
#include <cmath>

#include "matmul/rounding.h"
#include "program/states.h"
#include "states/pages.h"

namespace SB_NS {

template <bool IsDelta>
struct Scan {
  static constexpr int kRows = 16;     // whose factors are made together
  static constexpr int kAtOnce = sb::kUnitsOfTile;  // a state of 128 keys stays in L1
  static_assert(4 * kRows * (2 * SB_MOST_KEY_SIZE + 4) <= sb::kProductScratch && kRows % W == 0);

  const sb::Phase& phase;
  const SbScan& how;
  const int64_t head, key_head;
  const int size;  // of keys
  Units units;
  float *query, *key;  // [kRows, size]
  float *time, *decay, *strength;  // [kRows]
  float* dropped;  // units of a run that leaves no state

  Scan(const sb::Phase& p, int64_t h, char* scratch)
      : phase(p),
        how(*static_cast<const SbScan*>(p.op->weight)),
        head(h),
        key_head(how.heads_in_turn ? h % how.num_key_heads : h / (how.num_heads / how.num_key_heads)),
        size(how.key_size),
        units(p, how.place, int64_t{sizeof(float)} * kUnit * how.key_size),
        query(reinterpret_cast<float*>(scratch)),
        key(query + kRows * size),
        time(key + kRows * size),
        decay(time + kRows),
        strength(decay + kRows),
        dropped(reinterpret_cast<float*>(scratch + sb::kProductScratch)) {}

  const float* source(int64_t row) const {
    return static_cast<const float*>(phase.src.data) + row * phase.src.stride;
  }

  const float* values(int64_t row) const { return source(row) + how.value + head * how.value_size; }

  const float* gates(int64_t row) const {
    return static_cast<const float*>(phase.gate.data) + row * phase.gate.stride;
  }

  // Copies a query or key, of length `length` if that is not 0.
  void put_vector(const float* from, float* to, float length) const {
    V squares{};
    for (int i = 0; IsDelta && i < size; i += W) squares = fused(load(from + i), load(from + i), squares);
    const V factor = splat(IsDelta ? length / std::sqrt(sum(squares) + 1e-6f) : 1.0f);
    for (int i = 0; i < size; i += W) store(to + i, load(from + i) * factor);
  }

  // Makes what the columns of some rows share.
  void prepare(int64_t first, int count) const {
    const float length = 1.0f / std::sqrt(static_cast<float>(size));
    std::memset(time, 0, 3 * kRows * sizeof(float));
    for (int i = 0; i < count; ++i) {
      put_vector(source(first + i) + how.query + key_head * size, query + i * size, length);
      put_vector(source(first + i) + how.key + key_head * size, key + i * size, 1.0f);
      time[i] = gates(first + i)[how.step + head] + how.biases[head];
      if (IsDelta) strength[i] = gates(first + i)[how.strength + head];
    }
    for (int i = 0; i < kRows; i += W) {
      const V step = clamped(softplus(load(time + i)), how.least_step, how.most_step);
      store(decay + i, exp(step * how.rates[head]));
      store(strength + i, IsDelta ? gated(splat(1.0f), load(strength + i)) : step);
    }
  }

  // Changes N vectors of columns by row i: `from` d + k u -> `to`. out = q times that; sums += the next row's k
  // times that.
  template <int N, bool HasNext>
  SB_LAMBDA inline void change(int i, const float* const* from, float* const* to, const V* u, V* out, V* sums) const {
    const float *q = query + i * size, *k = key + i * size, *next = k + size;
    const V d = splat(decay[i]);
    constexpr int of_unit = kUnit / W;
    for (int j = 0; j < size; ++j) {
      V state[N];  // units lie whole pages apart, so a load waits for a store before it at the same offset
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) state[n] = load(from[n / of_unit] + j * kUnit + n % of_unit * W);
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
        state[n] = fused(splat(k[j]), u[n], state[n] * d);
        out[n] = fused(splat(q[j]), state[n], out[n]);
        if (HasNext) sums[n] = fused(splat(next[j]), state[n], sums[n]);
      }
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) store(to[n / of_unit] + j * kUnit + n % of_unit * W, state[n]);
    }
  }

  // k times N vectors of columns.
  template <int N>
  SB_LAMBDA inline void multiply(const float* k, const float* const* from, V* sums) const {
    constexpr int of_unit = kUnit / W;
    for (int j = 0; j < size; ++j)
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n)
        sums[n] = fused(splat(k[j]), load(from[n / of_unit] + j * kUnit + n % of_unit * W), sums[n]);
  }

  // Computes the columns of `Count` units from one on, for rows that were prepared.
  template <int Count>
  void compute_units(int64_t first, int count, int64_t unit, const Run& run) const {
    constexpr int N = Count * kUnit / W;
    const float* from[Count];
    float* to[Count];
    const int64_t of_head = how.value_size / kUnit, column = unit * kUnit;
    for (int c = 0; c < Count; ++c) {
      to[c] = run.behind ? units.of(run.behind, head * of_head + unit + c) : dropped + c * kUnit * size;
      from[c] = first == run.first ? units.before(run.before, head * of_head + unit + c) : to[c];
    }
    V sums[N]{};
    if (IsDelta) multiply<N>(key, from, sums);
    for (int i = 0; i < count; ++i) {
      V u[N], out[N]{};
      const float* v = values(first + i) + column;
      for (int n = 0; n < N; ++n) {
        u[n] = load(v + n * W);
        if (IsDelta) u[n] = u[n] - sums[n] * splat(decay[i]);
        u[n] = u[n] * splat(strength[i]);
        sums[n] = V{};
      }
      if (IsDelta && i + 1 < count)
        change<N, true>(i, from, to, u, out, sums);
      else
        change<N, false>(i, from, to, u, out, sums);
      float* result = static_cast<float*>(phase.dst.data) + (first + i) * phase.dst.stride + head * how.value_size + column;
      const V skip = splat(how.skips ? how.skips[head] : 0.0f);
      for (int n = 0; n < N; ++n)
        store(result + n * W, how.skips ? fused(skip, load(v + n * W), out[n]) : out[n]);
      for (int c = 0; c < Count; ++c) from[c] = to[c];
    }
  }

  // Computes units [unit, end) of the head for a run of rows, some rows of all units at a time.
  void compute_rows(const Run& run, int64_t unit, int64_t end) const {
    for (int64_t first = run.first; first < run.end; first += kRows) {
      const int count = static_cast<int>(std::min<int64_t>(kRows, run.end - first));
      prepare(first, count);
      int64_t next = unit;
      for (; next + kAtOnce <= end; next += kAtOnce) compute_units<kAtOnce>(first, count, next, run);
      if (next < end) compute_units<1>(first, count, next, run);
    }
  }

  // Computes units [unit, end) of the head for a run of rows. What is dropped has room for the units that are computed
  // at once, until their last row.
  void compute(const Run& run, int64_t unit, int64_t end) const {
    if (run.behind || run.end - run.first <= kRows) return compute_rows(run, unit, end);
    for (; unit < end; unit += kAtOnce) compute_rows(run, unit, std::min<int64_t>(unit + kAtOnce, end));
  }
};

template <bool IsDelta>
static void scan(const sb::Phase& phase, const sb::Claim& claim) {
  const auto& how = *static_cast<const SbScan*>(phase.op->weight);
  const int64_t part = claim.tile % phase.parts, heads = claim.tile / phase.parts;
  const Scan<IsDelta> one(phase, heads % how.num_heads, claim.scratch);
  // Parts are whole runs of units that are computed at once.
  const int64_t units = how.value_size / kUnit, at_once = Scan<IsDelta>::kAtOnce;
  const int64_t sets = (units + at_once - 1) / at_once;
  const int64_t first = sets * part / phase.parts * at_once;
  const int64_t end = std::min(units, sets * (part + 1) / phase.parts * at_once);
  each_run(phase.batch->states, heads / how.num_heads,
           [&](const Run& run) SB_LAMBDA { one.compute(run, first, end); });
}

inline void scan_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const bool is_delta = static_cast<const SbScan*>(phase.op->weight)->rule == SB_GATED_DELTA;
  is_delta ? scan<true>(phase, claim) : scan<false>(phase, claim);
}

}  // namespace SB_NS
