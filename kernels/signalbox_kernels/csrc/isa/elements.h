// The element types of products, seen as 32-bit words: one float32, or two bfloat16 along the sum.
//
// A product accumulates word by word, so the same kernel serves all. E::G elements make a unit of the
// right side, a word; the left side has elements of E::Factors, E::kLeftWords words of them for each.
#pragma once

#include "isa/simd.h"

namespace SB_NS {

// Scales of K and V in a cache: one for each token and head beside them, or for each layer in its ops.
enum class CacheScales { kNone, kOfTokens, kOfLayers };

struct InWords {
  typedef word unit;
  static constexpr CacheScales kScales = CacheScales::kNone;
  static constexpr bool kIsLatent = false;
};

struct F32 : InWords {
  static constexpr int G = 1, kLeftWords = 1;
  typedef float scalar;
  typedef F32 Factors;
  typedef V Left;
  typedef V Right;

  SB_INLINE Left broadcast(const word* p) {
    float x;
    std::memcpy(&x, p, sizeof x);
    return splat(x);
  }
  SB_INLINE Right right(const word* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  SB_INLINE V mac(V sum, Left a, Right b) { return fused(a, b, sum); }
  SB_INLINE V load(const scalar* p) { return SB_NS::load(p); }
  SB_INLINE void store(scalar* p, V v) { SB_NS::store(p, v); }
};

// bfloat16 that is widened in registers: products and sums are those of float32, in the same order, so
// that they have the bits of a float32 right side that holds the rounded values.
struct WideBf16 : InWords {
  static constexpr int G = 2, kLeftWords = 2;
  typedef uint16_t scalar;
  typedef F32 Factors;
  struct Pair {
    V even, odd;
  };
  typedef Pair Left;
  typedef Pair Right;

  SB_INLINE Left broadcast(const word* p) { return {F32::broadcast(p), F32::broadcast(p + 1)}; }
  SB_INLINE Right right(const word* p) {
    VU both;
    std::memcpy(&both, p, sizeof both);
    return {from_bits(both << 16), from_bits(both & 0xffff0000u)};
  }
  SB_INLINE V mac(V sum, Left a, Right b) {
    return fused(a.odd, b.odd, fused(a.even, b.even, sum));
  }
  // Rounds to nearest, ties to even; NaN stays NaN.
  SB_INLINE void store(scalar* p, V v) {
    const VU u = bits(v);
    const VU rounded = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    const VU quiet = u >> 16 | 0x40u;
    const VU chosen = (u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    const VH halves = __builtin_convertvector(chosen, VH);
    std::memcpy(p, &halves, sizeof halves);
  }
};

#if defined(__AVX512BF16__)
struct Bf16 : InWords {
  static constexpr int G = 2, kLeftWords = 1;
  typedef uint16_t scalar;
  typedef Bf16 Factors;
  typedef __m512bh Left;
  typedef __m512bh Right;

  SB_INLINE Left broadcast(const word* p) {
    return reinterpret_cast<Left>(_mm512_set1_epi32(static_cast<int>(*p)));
  }
  SB_INLINE Right right(const word* p) {
    return reinterpret_cast<Right>(_mm512_loadu_si512(p));
  }
  SB_INLINE V mac(V sum, Left a, Right b) {
    return reinterpret_cast<V>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), a, b));
  }
  SB_INLINE void store(scalar* p, V v) {
    const __m256bh h = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(v));
    std::memcpy(p, &h, sizeof h);
  }
  SB_INLINE V load(const scalar* p) {
    __m256i halves;
    std::memcpy(&halves, p, sizeof halves);
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, halves);
    return reinterpret_cast<V>(_mm512_maskz_slli_epi32(0xffff, wide, 16));
  }
};
#endif

}  // namespace SB_NS
