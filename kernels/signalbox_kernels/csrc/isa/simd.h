// Vectors of one instruction set, in the compilers' vector extension; included once per set.
//
// SB_NS names the set and SB_WIDTH is its floats per vector; see kernels.h.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define SB_INLINE static inline __attribute__((always_inline))
#define SB_LAMBDA __attribute__((always_inline))

namespace SB_NS {

constexpr int W = SB_WIDTH;

typedef float V __attribute__((vector_size(4 * SB_WIDTH)));
typedef int32_t VI __attribute__((vector_size(4 * SB_WIDTH)));
typedef uint32_t VU __attribute__((vector_size(4 * SB_WIDTH)));
typedef uint16_t VH __attribute__((vector_size(2 * SB_WIDTH)));
typedef uint32_t word __attribute__((may_alias));

SB_INLINE V load(const float* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

SB_INLINE void store(float* p, V v) { std::memcpy(p, &v, sizeof v); }

SB_INLINE V splat(float x) { return x - V{}; }

// a * b + c, rounded once where the set has the instruction. The compilers fuse nothing by themselves
// (-ffp-contract=off), so that each of them gives the same bits.
SB_INLINE V fused(V a, V b, V c) {
#if defined(__AVX512F__)
  return reinterpret_cast<V>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a),
                                             reinterpret_cast<__m512>(b),
                                             reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<V>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a),
                                             reinterpret_cast<__m256>(b),
                                             reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  return reinterpret_cast<V>(vfmaq_f32(reinterpret_cast<float32x4_t>(c),
                                       reinterpret_cast<float32x4_t>(a),
                                       reinterpret_cast<float32x4_t>(b)));
#else
  return a * b + c;
#endif
}

SB_INLINE V fused(V a, V b, float c) { return fused(a, b, splat(c)); }

SB_INLINE VU bits(V v) { return reinterpret_cast<VU>(v); }

SB_INLINE V from_bits(VU u) { return reinterpret_cast<V>(u); }

SB_INLINE V magnitude(V v) { return from_bits(bits(v) & 0x7fffffffu); }

SB_INLINE V select(VI mask, V yes, V no) { return mask ? yes : no; }

// The larger; NaN where b is NaN. (The unmasked intrinsic makes GCC 12 warn of its own header.)
SB_INLINE V larger(V a, V b) {
#if defined(__AVX512F__)
  return reinterpret_cast<V>(
      _mm512_maskz_max_ps(0xffff, reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#else
  return select(a > b, a, b);
#endif
}

// Folds the lanes onto one, halves onto halves.
template <class T, class F>
SB_INLINE T folded(T v, F&& f) {
  if constexpr (W == 16) {
    v = f(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  } else if constexpr (W == 8) {
    v = f(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
    return f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
  } else {
    v = f(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
    return f(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
  }
}

SB_INLINE float sum(V v) {
  return folded(v, [](V a, V b) SB_LAMBDA { return a + b; })[0];
}

SB_INLINE float largest(V v) {
  return folded(v, [](V a, V b) SB_LAMBDA { return larger(a, b); })[0];
}

// p * 2^n of a whole n that `shifted` is, less the magic number that rounded it.
SB_INLINE V scale_by_power(V p, V shifted, V n) {
#if defined(__AVX512F__)
  (void)shifted;
  return reinterpret_cast<V>(
      _mm512_maskz_scalef_ps(0xffff, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
#else
  (void)n;
  const VU power = (bits(shifted) + 127u) << 23;
  return p * from_bits(power);
#endif
}

// e^x to 2 ulp; 0 for what is far below -87, NaN stays. x is at most about 88.
SB_INLINE V exp(V x) {
  const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
#if defined(__AVX512F__)
  const V clamped = larger(splat(-110.0f), x);  // a power of 2 so low that it scales to 0
#else
  const V clamped = larger(splat(-87.0f), x);
#endif
  const V shifted = fused(clamped, splat(1.44269504088896341f), magic);
  const V n = shifted - magic;
  const V high = fused(n, splat(-0.693145751953125f), clamped);
  const V r = fused(n, splat(-1.42860682030941723e-6f), high);
  V p = splat(1.9875691500e-4f);
  p = fused(p, r, 1.3981999507e-3f);
  p = fused(p, r, 8.3334519073e-3f);
  p = fused(p, r, 4.1665795894e-2f);
  p = fused(p, r, 1.6666665459e-1f);
  p = fused(p, r, 5.0000001201e-1f);
  p = fused(p * r, r, r) + 1.0f;
#if defined(__AVX512F__)
  return scale_by_power(p, shifted, n);
#else
  return select(x < splat(-87.0f), V{}, scale_by_power(p, shifted, n));
#endif
}

// 2^x for what is rounded to bfloat16 next: within 4e-6 of it. x is at most about 127.
SB_INLINE V exp2_roughly(V x) {
#if defined(__AVX512DQ__)
  constexpr int below = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const V r = reinterpret_cast<V>(
      _mm512_maskz_reduce_ps(0xffff, reinterpret_cast<__m512>(x), below));
  V p = splat(1.3534167e-2f);
  p = fused(p, r, 5.2011464e-2f);
  p = fused(p, r, 2.4144275e-1f);
  p = fused(p, r, 6.9300383e-1f);
  p = fused(p, r, 1.0000026f);
  return scale_by_power(p, x, x);
#else
  return exp(x * 0.6931471805599453f);
#endif
}

// x times the sigmoid of z.
SB_INLINE V gated(V x, V z) {
  const V low = larger(splat(-87.0f), z);  // exp(-z) stays finite
  return x / (1.0f + exp(-low));
}

// The same for what is rounded to bfloat16 next.
SB_INLINE V gated_roughly(V x, V z) {
#if defined(__AVX512F__)
  const V low = larger(splat(-87.0f), z);
  const V divisor = 1.0f + exp2_roughly(low * -1.44269504088896341f);
  const V share = reinterpret_cast<V>(
      _mm512_maskz_rcp14_ps(0xffff, reinterpret_cast<__m512>(divisor)));
  return x * (share * fused(-divisor, share, 2.0f));
#else
  return gated(x, z);
#endif
}

// log(1 + e^x) to some ulp, also where it is small; 0 far below -87, NaN stays.
SB_INLINE V softplus(V x) {
  const V y = exp(-magnitude(x));  // the sum is larger(x, 0) + log(1 + y); 2 atanh(z) is that logarithm
  const V z = y / (y + 2.0f), square = z * z;
  V p = splat(1.0f / 15.0f);
  p = fused(p, square, 1.0f / 13.0f);
  p = fused(p, square, 1.0f / 11.0f);
  p = fused(p, square, 1.0f / 9.0f);
  p = fused(p, square, 1.0f / 7.0f);
  p = fused(p, square, 1.0f / 5.0f);
  p = fused(p, square, 1.0f / 3.0f);
  p = fused(p, square, 1.0f);
  return larger(V{}, x) + 2.0f * z * p;
}

// erf(x) within 2e-7 (Abramowitz and Stegun, 1964, 7.1.26).
SB_INLINE V erf(V x) {
  const V size = magnitude(x);
  const V t = 1.0f / fused(size, splat(0.3275911f), 1.0f);
  V p = splat(1.061405429f);
  p = fused(p, t, -1.453152027f);
  p = fused(p, t, 1.421413741f);
  p = fused(p, t, -0.284496736f);
  p = fused(p, t, 0.254829592f);
  const V risen = 1.0f - p * t * exp(-size * size);
  return from_bits(bits(risen) | (bits(x) & 0x80000000u));
}

// x times the normal distribution's share below x (Hendrycks and Gimpel, 2016), and its approximation.
SB_INLINE V gelu(V x) { return 0.5f * x * (1.0f + erf(x * 0.70710678118654752f)); }

SB_INLINE V gelu_tanh(V x) {
  const V inner = 0.79788456080286536f * fused(x * x * x, splat(0.044715f), x);
  const V size = magnitude(inner);
  const V low = select(size > splat(40.0f), splat(40.0f), size);
  const V risen = 1.0f - 2.0f / (1.0f + exp(2.0f * low));
  return 0.5f * x * (1.0f + from_bits(bits(risen) | (bits(inner) & 0x80000000u)));
}

// cap * tanh(x / cap); NaN of what is not finite.
SB_INLINE V capped(V x, float cap) {
  const V fallen = exp(magnitude(x) * (-2.0f / cap));
  const V risen = cap * (1.0f - fallen) / (1.0f + fallen);
  return fused(x, V{}, from_bits(bits(risen) | (bits(x) & 0x80000000u)));
}

SB_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

SB_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace SB_NS
