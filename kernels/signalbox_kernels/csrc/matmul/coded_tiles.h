// Products of coded rows with quantised weights in matrix registers, for many rows.
//
// The sums within a group are exact and those over groups in the same order as in vector registers,
// so a row's result is the same, to the bit, however many rows are beside it.
#pragma once

#include "matmul/coded.h"
#include "isa/tiles.h"

namespace SB_NS {

#if defined(__AMX_INT8__)
constexpr int kFewRows = 8;  // up to here vector registers are faster

// Sums 0 and 1, and 2 and 3, are up to 16 rows by 32 columns; 4 is rows of the left side, 6 and 7 columns
// of the right. Fewer rows take less time to multiply and to store.
template <class Q>
SB_INLINE TileConfig coded_config(int rows) {
  constexpr int words = kGroupWords / Q::parts;
  const int at_most = rows < kTileRows ? rows : kTileRows;
  TileConfig config;
  for (int sum = 0; sum < 4; ++sum) config.set(sum, at_most, kTileWords);
  config.set(4, at_most, words);
  config.set(6, words, kTileWords);
  config.set(7, words, kTileWords);
  return config;
}

// The codes of group g as bytes, [words, panel]: where they are in the weight, or in `unpacked`.
template <class Q>
SB_INLINE const word* codes_of(const char* b, int64_t g, word* unpacked) {
  const auto* packed = reinterpret_cast<const word*>(b + Q::at(g));
  if (Q::Bits == 8) return packed;
#pragma GCC unroll 8
  for (int i = 0; i < kGroupWords; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kPanel; j += W) {
      const VU codes = factors_word<Q>(book_of<Q>(b), packed + j, i);
      std::memcpy(unpacked + i * kPanel + j, &codes, sizeof codes);
    }
  return unpacked;
}

struct CodedScratch {
  int32_t dot[2 * kTileRows * kPanel];  // of codes and of low bytes
  word unpacked[kGroupWords * kPanel];
  float sum[sb::kRowsAtOnce * kPanel];
};
static_assert(sizeof(CodedScratch) <= sb::kProductScratch);

// One part of one group: what 16 rows at a time are multiplied with.
template <class Q, class G>
struct PartOfGroup {
  static constexpr int half = kPanel / 2;
  static_assert(half == W);

  // The first sum of the next 16 rows: another one, unless low bytes have the others.
  static constexpr int next_of(int first) { return is_wide<G> ? 0 : 2 - first; }

  const char* a;  // the group in the first row
  int64_t a_stride;
  int part;
  Scales<Q> low, high;

  PartOfGroup(const char* left, int64_t stride, const char* b, int64_t g, int which)
      : a(left),
        a_stride(stride),
        part(which),
        low(Scales<Q>::of(b, g, part, 0)),
        high(Scales<Q>::of(b, g, part, half)) {}

  void load_right(const word* codes) const {
    const word* right = codes + part * (kGroupWords / 2) * kPanel;
    tile_load<6>(right, 4 * kPanel);
    tile_load<7>(right + half, 4 * kPanel);
  }

  // Sums First and First + 1 of the bytes at `left`.
  template <int First>
  SB_LAMBDA void multiply_bytes(const char* left) const {
    tile_zero<First>();
    tile_zero<First + 1>();
    tile_load<4>(left + part * kGroup / 2, a_stride);
    tile_multiply_bytes<First, 4, 6>();
    tile_multiply_bytes<First + 1, 4, 7>();
  }

  // Sums of 16 rows from `first` on, of which only some may be there: First and First + 1 of their
  // codes; 2 and 3 of low bytes.
  template <int First>
  SB_LAMBDA void multiply_rows(int first) const {
    const char* left = a + first * a_stride;
    multiply_bytes<First>(left);
    if constexpr (is_wide<G>) multiply_bytes<2>(left + sizeof(CodedGroup));
  }

  // The exact sums of W columns.
  SB_INLINE VI stored_sums(const int32_t* dot) {
    const VI sums = load_ints(dot);
    return is_wide<G> ? (sums << 8) + load_ints(dot + kTileRows * kPanel) : sums;
  }

  template <int First>
  SB_LAMBDA void add_rows(int first, int rows, int32_t* dot, float* c) const {
    tile_store<First>(dot, 4 * kPanel);
    tile_store<First + 1>(dot + half, 4 * kPanel);
    if constexpr (is_wide<G>) {
      tile_store<2>(dot + kTileRows * kPanel, 4 * kPanel);
      tile_store<3>(dot + kTileRows * kPanel + half, 4 * kPanel);
    }
    if (first + kTileRows < rows) multiply_rows<next_of(First)>(first + kTileRows);
    for (int r = first; r < rows && r < first + kTileRows; ++r, dot += kPanel) {
      const auto& left = *reinterpret_cast<const CodedGroup*>(a + r * a_stride);
      const int32_t start = start_of<Q>(left, part);
      float* to = c + r * kPanel;
      store(to, add_scaled(low, stored_sums(dot) + start, left, part, load(to)));
      store(to + half, add_scaled(high, stored_sums(dot + half) + start, left, part, load(to + half)));
    }
  }

  // Adds to c[rows, panel]. The next rows are multiplied while the sums of these are scaled.
  void add_all(int rows, int32_t* dot, float* c) const {
    multiply_rows<0>(0);
    for (int first = 0; first < rows; first += 2 * kTileRows) {
      add_rows<0>(first, rows, dot, c);
      if (first + kTileRows < rows) add_rows<next_of(0)>(first + kTileRows, rows, dot, c);
    }
  }
};

template <class Q, class G>
static void tiled_coded(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
  auto& scratch = *reinterpret_cast<CodedScratch*>(claim.scratch);
  const int64_t a_stride = phase.src.stride, groups = phase.depth;
  over_parts<sb::kRowsAtOnce>(phase, claim, [&](const Spot& at, const char* b, const char* next) {
    use_tiles(coded_config<Q>(at.rows));
    const char* a = static_cast<const char*>(phase.src.data) + at.row * a_stride;
    std::memset(scratch.sum, 0, sizeof(float) * static_cast<size_t>(at.rows) * kPanel);
    for (int64_t g = 0; g < groups; ++g, a += sizeof(G)) {
      if (next && !at.part)
        for (int64_t line = g * Q::fetched; line < (g + 1) * Q::fetched; line += 64)
          prefetch_l2(next + line);
      const word* codes = codes_of<Q>(b, g, scratch.unpacked);
      for (int part = 0; part < Q::parts; ++part) {
        const PartOfGroup<Q, G> group(a, a_stride, b, g, part);
        group.load_right(codes);
        group.add_all(at.rows, scratch.dot, scratch.sum);
      }
    }
    finish(phase, at, scratch.sum);
  });
}
#endif

}  // namespace SB_NS
