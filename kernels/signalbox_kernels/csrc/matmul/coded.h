// Products of coded rows with quantised weights.
//
// Codes are multiplied as bytes, those of 16 bits in two turns, and summed exactly within a group;
// groups are summed in float32, in the order of the sum.
#pragma once

#include "matmul/coding.h"
#include "matmul/linear.h"
#include "matmul/product.h"
#include "matmul/values.h"

namespace SB_NS {

// The place of a part's word in its group. Words that share bytes follow each other.
template <class Q>
SB_INLINE int word_of(int part, int step) {
  constexpr int words = kGroupWords / Q::parts;
  return Q::parts == 1 ? step / 2 + step % 2 * words / 2 : part * words + step;
}

#if defined(SB_HAS_PAIRS)
// Adds the products of Bits bits of each code, those from bit `Low` on, times 2^Low.
template <class Q, int Bits, int Low, int R, int NV>
SB_INLINE void dot_bits(VI (&dot)[R][NV], const char* a, int64_t a_stride, const word* b,
                        const uint8_t* book, int part) {
  constexpr int words = kGroupWords / Q::parts;
  constexpr int at_once = kPairsAtOnce<Bits> < words ? kPairsAtOnce<Bits> : words;
#pragma GCC unroll 4
  for (int first = 0; first < words; first += at_once) {
    VectorOfPairs pairs[R][NV];
#pragma GCC unroll 8
    for (int step = first; step < first + at_once; ++step) {
      const int i = word_of<Q>(part, step);
      VU codes[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) {
        codes[v] = factors_word<Q>(book, b + v * W, i);
        if (Bits < Q::product_bits) codes[v] = (codes[v] >> Low) & ((1u << Bits) - 1) * 0x01010101u;
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        word four;
        std::memcpy(&four, a + r * a_stride + i * 4, sizeof four);
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) {
          const VectorOfPairs product = multiply_pairs(codes[v], four);
          pairs[r][v] = step == first ? product : add_pairs(pairs[r][v], product);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) dot[r][v] += sum_pairs(pairs[r][v]) << Low;
  }
}

// Adds a part of a group, exactly: dot[R, NV * W].
template <class Q, int R, int NV>
SB_INLINE void dot_words(VI (&dot)[R][NV], const char* a, int64_t a_stride, const word* b,
                         const uint8_t* book, int part) {
  if constexpr (Q::product_bits < 8) return dot_bits<Q, Q::product_bits, 0>(dot, a, a_stride, b, book, part);
  dot_bits<Q, 4, 0>(dot, a, a_stride, b, book, part);
  dot_bits<Q, 4, 4>(dot, a, a_stride, b, book, part);
}
#else
// Adds a part of a group, exactly: dot[R, NV * W].
template <class Q, int R, int NV>
SB_INLINE void dot_words(VI (&dot)[R][NV], const char* a, int64_t a_stride, const word* b,
                         const uint8_t* book, int part) {
#pragma GCC unroll 8
  for (int step = 0; step < kGroupWords / Q::parts; ++step) {
    const int i = word_of<Q>(part, step);
    VU codes[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) codes[v] = factors_word<Q>(book, b + v * W, i);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      word four;
      std::memcpy(&four, a + r * a_stride + i * 4, sizeof four);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) dot[r][v] = dot_bytes<Q::product_bits == 8>(dot[r][v], codes[v], four);
    }
  }
}
#endif

// What the exact sum of a row's part of a group begins with, in place of codes around zero.
template <class Q>
SB_INLINE int32_t start_of(const CodedGroup& left, int part) {
  return (Q::parts == 1 ? left.minus : left.minus_part[part]) * Q::zero;
}

// The sum of a row's codes in a part of a group.
template <class Q>
SB_INLINE float total_of(const CodedGroup& left, int part) {
  return Q::parts == 1 ? left.total : static_cast<float>(-left.minus_part[part]);
}

// Adds the exact sums of a part of a group, W columns, to those of the groups before.
template <class Q>
SB_INLINE V add_scaled(const Scales<Q>& scales, VI dot, const CodedGroup& left, int part, V sum) {
  V x = to_floats(dot) * scales.scale;
  if (Q::HasMinimum) x = fused(scales.minimum, splat(total_of<Q>(left, part)), x);
  return fused(x, splat(left.scale), sum);
}

// Adds one part of group g, with its scales, to c[R, NV * W].
template <class Q, class G, int R, int NV>
SB_INLINE void add_part(const char* a, int64_t a_stride, const char* b, int64_t g, int column,
                        int part, V (&sum)[R][NV]) {
  const auto group = [=](int r) SB_LAMBDA {
    return reinterpret_cast<const CodedGroup*>(a + r * a_stride);
  };
  VI dot[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v)
      dot[r][v] = (is_wide<G> ? 0 : start_of<Q>(*group(r), part)) + VI{};
  const word* codes = reinterpret_cast<const word*>(b + Q::at(g)) + column;
  const char* last = is_wide<G> ? a + sizeof(CodedGroup) : a;  // the low bytes
  if (is_wide<G>) __asm__("" : "+r"(last));  // keeps the loop: two copies take twice as long to compile
  for (;; a = last) {
    dot_words<Q>(dot, a, a_stride, codes, book_of<Q>(b), part);
    if (!is_wide<G> || a == last) break;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) dot[r][v] = (dot[r][v] << 8) + start_of<Q>(*group(r), part);
  }
  Scales<Q> scales[NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) scales[v] = Scales<Q>::of(b, g, part, column + v * W);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v)
      sum[r][v] = add_scaled(scales[v], dot[r][v], *group(r), part, sum[r][v]);
}

// c[R, NV * W] of the columns from `column` on; `next` is fetched meanwhile, if there is one.
template <class Q, class G, int R, int NV>
static void coded_product(const char* a, int64_t a_stride, const char* b, int column,
                          int64_t groups, float* c, const char* next, const Spot& at) {
  V sum[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) sum[r][v] = V{};
  // All parts fetch a share of the next panel: together they take as long as memory does.
  const int64_t lines = next ? ((Q::fetched + 63) / 64 + at.parts - 1) / at.parts : 0;
  next += at.part * groups * lines * 64;
  for (int64_t g = 0; g < groups; ++g, a += sizeof(G)) {
    if (lines && !at.part)
#pragma GCC unroll 1
      for (int64_t line = g * Q::fetched; line < (g + 1) * Q::fetched; line += 64)
        prefetch(b + 4 * Q::fetched + line);  // of this panel
#pragma GCC unroll 1
    for (int64_t line = 0; line < lines; ++line, next += 64) prefetch_l2(next);
#pragma GCC unroll 2
    for (int part = 0; part < Q::parts; ++part)
      add_part<Q, G, R, NV>(a, a_stride, b, g, column, part, sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + r * kPanel + v * W, sum[r][v]);
}

#if defined(__AVX512F__)
constexpr int kCodedRows = 6;
#elif defined(__AVX2__)
constexpr int kCodedRows = 4;
#else
constexpr int kCodedRows = 2;  // no registers for more, and less to compile
#endif

template <class Q, class G>
static void coded_tile(const sb::Phase& phase, const sb::Claim& claim, Finish finish) {
  auto* c = reinterpret_cast<float*>(claim.scratch);
  const auto* a = static_cast<const char*>(phase.src.data);
  const int64_t a_stride = phase.src.stride, groups = phase.depth;
  over_parts<kCodedRows>(phase, claim, [&](const Spot& at, const char* b, const char* next) {
    with_rows<kCodedRows>(at.rows, [&](auto count) SB_LAMBDA {
      for (int column = 0; column < kPanel; column += 2 * W)
        coded_product<Q, G, decltype(count)::value, 2>(a + at.row * a_stride, a_stride, b, column,
                                                       groups, c + column, column ? nullptr : next, at);
    });
    finish(phase, at, c);
  });
}

}  // namespace SB_NS
