// The two element types, seen as 32-bit words: one float32, or two bfloat16 along the sum.
//
// A product accumulates word by word, so the same kernel serves both. E::G elements make a word.
#pragma once

#include "isa/simd.h"

namespace SB_NS {

struct F32 {
  static constexpr int G = 1;
  typedef float scalar;
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
  SB_INLINE V mac(V sum, Left a, Right b) { return sum + a * b; }
  SB_INLINE V load(const scalar* p) { return SB_NS::load(p); }
  SB_INLINE void store(scalar* p, V v) { SB_NS::store(p, v); }
  SB_INLINE float widen(scalar x) { return x; }
};

struct Bf16 {
  static constexpr int G = 2;
  typedef uint16_t scalar;

#if defined(__AVX512BF16__)
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
#else
  struct Pair {
    V even, odd;
  };
  typedef Pair Left;
  typedef Pair Right;

  SB_INLINE Left broadcast(const word* p) {
    float even, odd;
    const uint32_t low = *p << 16, high = *p & 0xffff0000u;
    std::memcpy(&even, &low, sizeof even);
    std::memcpy(&odd, &high, sizeof odd);
    return {splat(even), splat(odd)};
  }
  SB_INLINE Right right(const word* p) {
    VU u;
    std::memcpy(&u, p, sizeof u);
    return {from_bits(u << 16), from_bits(u & 0xffff0000u)};
  }
  SB_INLINE V mac(V sum, Left a, Right b) { return (sum + a.even * b.even) + a.odd * b.odd; }
  SB_INLINE void store(scalar* p, V v) {
    const VU u = bits(v);
    const VU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const VU is_nan = reinterpret_cast<VU>(v != v);
    const VU picked = (((u >> 16) | 0x40u) & is_nan) | (rounded & ~is_nan);
    const VH half = __builtin_convertvector(picked, VH);
    std::memcpy(p, &half, sizeof half);
  }
#endif
  SB_INLINE V load(const scalar* p) {
#if defined(__AVX512F__)
    __m256i halves;
    std::memcpy(&halves, p, sizeof halves);
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, halves);
    return reinterpret_cast<V>(_mm512_maskz_slli_epi32(0xffff, wide, 16));
#else
    VH half;
    std::memcpy(&half, p, sizeof half);
    return from_bits(__builtin_convertvector(half, VU) << 16);
#endif
  }
  SB_INLINE float widen(scalar x) {
    const uint32_t u = static_cast<uint32_t>(x) << 16;
    float f;
    std::memcpy(&f, &u, sizeof f);
    return f;
  }
};

}  // namespace SB_NS
