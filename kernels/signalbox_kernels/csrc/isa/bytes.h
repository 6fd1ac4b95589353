// Dot products of bytes in vectors of one instruction set, and bytes and halves as floats.
#pragma once

#include "isa/simd.h"

namespace SB_NS {

SB_INLINE VU load_words(const word* p) {
  VU u;
  std::memcpy(&u, p, sizeof u);
  return u;
}

SB_INLINE VI load_ints(const int32_t* p) {
  VI v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

SB_INLINE V to_floats(VI v) { return __builtin_convertvector(v, V); }

// Stores the lanes, each of which fits, as bytes. (GCC 12 converts vectors lane by lane.)
SB_INLINE void store_bytes(int8_t* p, VI v) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(v));
  std::memcpy(p, &bytes, sizeof bytes);
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_packs_epi32(reinterpret_cast<__m256i>(v), _mm256_setzero_si256());
  const __m256i fours = _mm256_packs_epi16(pairs, _mm256_setzero_si256());
  const int32_t halves[2] = {_mm256_extract_epi32(fours, 0), _mm256_extract_epi32(fours, 4)};
  std::memcpy(p, halves, sizeof halves);
#elif defined(__aarch64__)
  const int16x4_t pairs = vmovn_s32(reinterpret_cast<int32x4_t>(v));
  const int8x8_t fours = vmovn_s16(vcombine_s16(pairs, pairs));
  std::memcpy(p, &fours, W);
#else
  for (int i = 0; i < W; ++i) p[i] = static_cast<int8_t>(v[i]);
#endif
}

// Signed bytes as whole numbers of 32 bits.
SB_INLINE VI widen_bytes(const void* p) {
#if defined(__AVX512F__)
  __m128i bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<VI>(_mm512_maskz_cvtepi8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  return reinterpret_cast<VI>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  uint32_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  const int16x8_t pairs = vmovl_s8(vcreate_s8(bytes));
  return reinterpret_cast<VI>(vmovl_s16(vget_low_s16(pairs)));
#else
  VI v;
  for (int i = 0; i < W; ++i) v[i] = static_cast<const int8_t*>(p)[i];
  return v;
#endif
}

// Signed bytes as floats.
SB_INLINE V load_bytes(const void* p) { return to_floats(widen_bytes(p)); }

// Signed bytes as whole numbers of 16 bits.
SB_INLINE VH widen_to_halves(const void* p) {
#if defined(__AVX512F__)
  __m128i bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<VH>(_mm256_cvtepi8_epi16(bytes));
#elif defined(__AVX2__)
  return reinterpret_cast<VH>(_mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  uint32_t bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<VH>(vget_low_s16(vmovl_s8(vcreate_s8(bytes))));
#else
  VH v;
  for (int i = 0; i < W; ++i)
    v[i] = static_cast<uint16_t>(static_cast<int16_t>(static_cast<const int8_t*>(p)[i]));
  return v;
#endif
}

// Floats of 16 bits as floats.
SB_INLINE V widen_halves(VH halves) {
#if defined(__AVX512F__)
  return reinterpret_cast<V>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(halves)));
#elif defined(__F16C__)
  return reinterpret_cast<V>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)));
#elif defined(__aarch64__)
  return reinterpret_cast<V>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(halves)));
#else
  const VU u = __builtin_convertvector(halves, VU);
  const V magnitude = from_bits((u & 0x7fffu) << 13) * 0x1p112f;  // a subnormal one, too
  const VU infinite = reinterpret_cast<VU>((u & 0x7c00u) == 0x7c00u) & 0x7f800000u;  // or NaN
  return from_bits(bits(magnitude) | infinite | (u & 0x8000u) << 16);
#endif
}

SB_INLINE V load_halves(const void* p) {
  VH halves;
  std::memcpy(&halves, p, sizeof halves);
  return widen_halves(halves);
}

SB_INLINE V load_bfloats(const void* p) {
  VH halves;
  std::memcpy(&halves, p, sizeof halves);
  return from_bits(__builtin_convertvector(halves, VU) << 16);
}

// table[code], for the low four bits of each lane.
SB_INLINE V look_up(const float* table, VU code) {
#if defined(__AVX512F__)
  return reinterpret_cast<V>(_mm512_maskz_permutexvar_ps(
      0xffff, reinterpret_cast<__m512i>(code), _mm512_loadu_ps(table)));
#elif defined(__AVX2__)
  const auto places = reinterpret_cast<__m256i>(code);  // the low three bits count
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), places);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), places);
  return reinterpret_cast<V>(_mm256_blendv_ps(low, high, reinterpret_cast<__m256>(code << 28)));
#else
  V v;
  for (int i = 0; i < W; ++i) v[i] = table[code[i] & 15u];
  return v;
#endif
}

// table[code] in each byte of the words, whose codes are below 16.
SB_INLINE VU look_up_bytes(const uint8_t* table, VU codes) {
#if defined(__AVX512BW__)
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m512i places = reinterpret_cast<__m512i>(codes);
  return reinterpret_cast<VU>(_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(0xffff, once), places));
#elif defined(__AVX2__)
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i places = reinterpret_cast<__m256i>(codes);
  return reinterpret_cast<VU>(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(once), places));
#elif defined(__aarch64__)
  return reinterpret_cast<VU>(vqtbl1q_u8(vld1q_u8(table), reinterpret_cast<uint8x16_t>(codes)));
#else
  for (int i = 0; i < W; ++i) {
    const uint32_t four = codes[i];
    codes[i] = table[four & 255u] | table[four >> 8 & 255u] << 8 | table[four >> 16 & 255u] << 16 |
               static_cast<uint32_t>(table[four >> 24]) << 24;
  }
  return codes;
#endif
}

// How many products of pairs of bytes fit into 16 bits together, where pairs are what is multiplied:
// unsigned codes of Bits bits, and signed bytes down to -128.
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
#define SB_HAS_PAIRS 1
template <int Bits>
constexpr int kPairsAtOnce = 128 >> Bits;

#if defined(__AVX512BW__)
using VectorOfPairs = __m512i;
#define SB_PAIRS(name) _mm512_##name
#else
using VectorOfPairs = __m256i;
#define SB_PAIRS(name) _mm256_##name
#endif

SB_INLINE VectorOfPairs multiply_pairs(VU codes, word four) {
  return SB_PAIRS(maddubs_epi16)(reinterpret_cast<VectorOfPairs>(codes),
                                 SB_PAIRS(set1_epi32)(static_cast<int>(four)));
}

SB_INLINE VectorOfPairs add_pairs(VectorOfPairs a, VectorOfPairs b) {
  VectorOfPairs sum = SB_PAIRS(add_epi16)(a, b);
  __asm__("" : "+x"(sum));  // GCC would add up in a tree, with more sums than registers
  return sum;
}

// The two sums of each word, together.
SB_INLINE VI sum_pairs(VectorOfPairs pairs) {
  return reinterpret_cast<VI>(SB_PAIRS(madd_epi16)(pairs, SB_PAIRS(set1_epi16)(1)));
}
#undef SB_PAIRS
#else

// sum + the products of each word's four unsigned bytes with the four signed ones of `four`, exact.
// IsWide: the unsigned bytes may exceed 127.
template <bool IsWide>
SB_INLINE VI dot_bytes(VI sum, VU codes, word four) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<VI>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sum),
                                                  reinterpret_cast<__m512i>(codes),
                                                  _mm512_set1_epi32(static_cast<int>(four))));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<VI>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sum),
                                                      reinterpret_cast<__m256i>(codes),
                                                      _mm256_set1_epi32(static_cast<int>(four))));
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  const auto right = reinterpret_cast<int8x16_t>(vdupq_n_u32(four));
  return reinterpret_cast<VI>(vusdotq_s32(reinterpret_cast<int32x4_t>(sum),
                                          reinterpret_cast<uint8x16_t>(codes), right));
#elif defined(__ARM_FEATURE_DOTPROD)
  const auto right = reinterpret_cast<int8x16_t>(vdupq_n_u32(four));
  const auto left = reinterpret_cast<int8x16_t>(IsWide ? codes ^ 0x80808080u : codes);
  const int32x4_t dot = vdotq_s32(reinterpret_cast<int32x4_t>(sum), left, right);
  if (!IsWide) return reinterpret_cast<VI>(dot);
  // Both sides are signed: what was subtracted from the codes, 128 times the right side, is added.
  const int8x16_t half = vdupq_n_s8(64);
  const int32x4_t missing = vdotq_s32(vdotq_s32(vdupq_n_s32(0), half, right), half, right);
  return reinterpret_cast<VI>(vaddq_s32(dot, missing));
#else
  for (int i = 0; i < 4; ++i) {
    const auto right = static_cast<int8_t>(four >> (8 * i));
    sum += reinterpret_cast<VI>((codes >> (8 * i)) & 0xffu) * right;
  }
  return sum;
#endif
}
#endif

}  // namespace SB_NS
