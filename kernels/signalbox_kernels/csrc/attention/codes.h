// K and V in 8 bits, which attention decodes in registers: products and sums are those of float32.
#pragma once

#include <cmath>
#include <type_traits>

#include "isa/bytes.h"
#include "isa/elements.h"
#include "program/api.h"

namespace SB_NS {

// Codes lie one by one, so that a vector of them widens to a vector of floats.
struct InBytes {
  static constexpr int G = 1, kLeftWords = 1;
  static constexpr bool kIsLatent = false;
  typedef uint8_t scalar;
  typedef uint8_t unit;
  typedef F32 Factors;
  typedef V Left;
  typedef V Right;

  SB_INLINE Left broadcast(const word* p) { return F32::broadcast(p); }
  SB_INLINE V mac(V sum, Left a, Right b) { return fused(a, b, sum); }
};

// Whole numbers, with a scale for each token and head: 1/127 of the largest magnitude.
struct Int8 : InBytes {
  static constexpr CacheScales kScales = CacheScales::kOfTokens;

  SB_INLINE Right right(const unit* p) { return load_bytes(p); }

  SB_INLINE void store(scalar* p, V v) {
    const V magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const VI codes = reinterpret_cast<VI>(bits(v + magic) - bits(magic));
    store_bytes(reinterpret_cast<int8_t*>(p), codes);
  }

  // Returns what values are multiplied with to be codes, and their scale: NaN if one is not finite.
  // Below 2^-120, whose inverse would overflow, codes are zero.
  SB_INLINE float inverse_scale(const float* values, int size, float& scale) {
    VI most{};  // magnitudes are ordered as their bits are, and what is not finite is above all
    for (int i = 0; i < size; i += W) {
      const VI magnitude = reinterpret_cast<VI>(bits(load(values + i)) & 0x7fffffffu);
      most = magnitude > most ? magnitude : most;
    }
    const int32_t top_bits = folded(most, [](VI a, VI b) SB_LAMBDA { return a > b ? a : b; })[0];
    float top;
    std::memcpy(&top, &top_bits, sizeof top);
    const bool is_finite = top_bits < 0x7f800000;
    scale = is_finite ? top * (1.0f / 127.0f) : NAN;
    return is_finite && top > 0x1p-120f ? 127.0f / top : 0.0f;
  }
};

// E4M3, the finite one: a sign, 4 bits of exponent (bias 7), 3 of mantissa; NaN is all ones.
struct E4m3 : InBytes {
  static constexpr CacheScales kScales = CacheScales::kOfLayers;
  static constexpr float kUnit = 256.0f;  // of what `right` returns: the biases of halves and codes differ by 8

  SB_INLINE Right right(const unit* p) {
    const VH code = widen_to_halves(p) << 7 & 0xbf80;  // the sign is in bit 15, and 14 is free
    const VH is_nan = reinterpret_cast<VH>((code | 0x8000) == 0xbf80);
    return widen_halves(code | (is_nan & 0x7e00));
  }

  // Rounds to nearest, ties to even; what is too large becomes 448, NaN stays NaN.
  SB_INLINE void store(scalar* p, V v) {
    const VU sign = bits(v) >> 24 & 0x80u;
    const V size = magnitude(v);
    const VU limited = bits(select(size > splat(448.0f), splat(448.0f), size));
    const VU normal = ((limited + 0x7ffffu + (limited >> 20 & 1u)) >> 20) - (120u << 3);
    const V magic = splat(16384.0f);  // its last place is 2^-9, that of subnormal codes
    const VU subnormal = bits(from_bits(limited) + magic) - bits(magic);
    VU code = size < splat(0x1p-6f) ? subnormal : normal;
    code = bits(size) > 0x7f800000u ? code | 0x7fu : code;
    store_bytes(reinterpret_cast<int8_t*>(p), reinterpret_cast<VI>((code | sign) << 24) >> 24);
  }
};

// Latents lie as rows, so that K, which ends with V, is stored once; scores sum within vectors (latents.h).
struct Latents32 : F32 {
  static constexpr bool kIsLatent = true;
};

struct Latents16 : WideBf16 {
  static constexpr int G = 1, kLeftWords = 1;
  static constexpr bool kIsLatent = true;
  typedef uint16_t unit;
  typedef V Left;
  typedef V Right;

  SB_INLINE Left broadcast(const word* p) { return F32::broadcast(p); }
  SB_INLINE Right right(const unit* p) { return load_bfloats(p); }
  SB_INLINE V mac(V sum, Left a, Right b) { return fused(a, b, sum); }
};

// Bytes of a layer's K and V of one head in a block, with the scales: K's of all tokens, then V's.
template <class E>
SB_INLINE int64_t head_bytes(const SbShape& shape) {
  const auto size = static_cast<int64_t>(sizeof(typename E::scalar)) * shape.head_size;
  const int64_t scale = E::kScales == CacheScales::kOfTokens ? sizeof(float) : 0;
  return (E::kIsLatent ? 1 : 2) * (size + scale) * shape.block_size;
}

// Returns the scales behind a head's K and V in a block: those of K, [block_size], and of V.
template <class E, class T>
SB_INLINE auto token_scales(T* keys, const SbShape& shape) {
  typedef std::conditional_t<std::is_const_v<T>, const float, float> Scale;
  return reinterpret_cast<Scale*>(keys + 2 * static_cast<int64_t>(shape.head_size) * shape.block_size);
}

}  // namespace SB_NS
