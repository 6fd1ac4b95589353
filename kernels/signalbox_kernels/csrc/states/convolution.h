// Causal convolutions of a few tokens, each channel by itself.
//
// A row is the sum of its inputs from the oldest on, whether those are of this step or of a state: its bits depend on
// its position alone.
#pragma once

#include "states/pages.h"

namespace SB_NS {

template <int Width>
struct Convolution {
  static constexpr int kPast = Width - 1;

  const sb::Phase& phase;
  const SbConvolution& how;
  Units units;

  explicit Convolution(const sb::Phase& p)
      : phase(p),
        how(*static_cast<const SbConvolution*>(p.op->weight)),
        units(p, how.place, kPast * kUnit * int64_t{sizeof(float)}) {}

  const float* source(int64_t row) const {
    return static_cast<const float*>(phase.src.data) + row * phase.src.stride;
  }

  V input(int64_t row, int64_t channel) const {
    const float* x = source(row) + channel;
    return how.factor < 0 ? load(x + how.column) : load(x + how.column) * load(x + how.factor);
  }

  // The input of a row that may be before the run, from where its state has it.
  V any_input(const Run& run, int64_t row, int64_t channel) const {
    if (row >= run.first) return input(row, channel);
    const float* unit = units.before(run.before, channel / kUnit);
    return load(unit + (row - run.first + kPast) * kUnit + channel % kUnit);
  }

  void finish(int64_t row, int64_t channel, V sum) const {
    if (how.activation == SB_SILU) sum = gated(sum, sum);
    if (how.gate >= 0) sum = sum * load(source(row) + how.gate + channel);
    store(static_cast<float*>(phase.dst.data) + row * phase.dst.stride + channel, sum);
  }

  template <class F>
  SB_LAMBDA inline void sum_row(int64_t row, int64_t first, int64_t end, F&& input_of) const {
    for (int64_t c = first; c < end; c += W) {
      V sum = how.bias ? load(how.bias + c) : V{};
      for (int i = 0; i < Width; ++i)
        sum = fused(load(how.weights + i * how.num_channels + c), input_of(row - kPast + i, c), sum);
      finish(row, c, sum);
    }
  }

  // Computes channels [first, end) of a run, and then its state, if it leaves one, which may lie where the one before
  // it does.
  void compute(const Run& run, int64_t first, int64_t end) const {
    for (int64_t row = run.first; row < run.end; ++row) {
      if (row - run.first >= kPast)
        sum_row(row, first, end, [&](int64_t r, int64_t c) SB_LAMBDA { return input(r, c); });
      else
        sum_row(row, first, end, [&](int64_t r, int64_t c) SB_LAMBDA { return any_input(run, r, c); });
    }
    for (int64_t c = first; run.behind && c < end; c += W) {
      float* unit = units.of(run.behind, c / kUnit) + c % kUnit;
      for (int i = 0; i < kPast; ++i) store(unit + i * kUnit, any_input(run, run.end - kPast + i, c));
    }
  }
};

template <int Width>
static void convolve(const sb::Phase& phase, const sb::Claim& claim) {
  const Convolution<Width> convolution(phase);
  const int64_t units = convolution.how.num_channels / kUnit, part = claim.tile % phase.parts;
  const int64_t first = units * part / phase.parts * kUnit, end = units * (part + 1) / phase.parts * kUnit;
  each_run(phase.batch->states, claim.tile / phase.parts,
           [&](const Run& run) SB_LAMBDA { convolution.compute(run, first, end); });
}

inline void convolve_tile(const sb::Phase& phase, const sb::Claim& claim) {
  switch (static_cast<const SbConvolution*>(phase.op->weight)->width) {
    case 2: return convolve<2>(phase, claim);
    case 3: return convolve<3>(phase, claim);
    default: return convolve<4>(phase, claim);
  }
}

}  // namespace SB_NS
