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
  SB_INLINE V mac(V sum, Left a, Right b) { return fused(a, b, sum); }
  SB_INLINE V load(const scalar* p) { return SB_NS::load(p); }
  SB_INLINE void store(scalar* p, V v) { SB_NS::store(p, v); }
};

#if defined(__AVX512BF16__)
struct Bf16 {
  static constexpr int G = 2;
  typedef uint16_t scalar;

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
