// The values that stored weights stand for, in float32: of a group of 32 along the sum by the columns
// of a panel, and of single rows.
//
// A float is widened. A whole number times its scale has at most 24 significant bits, and so has the
// product of two scales: they are exact, and a minimum is added with one rounding, fused or not; what
// a code of a float stands for is multiplied with its scale with one rounding. So values equal, by
// bits, those that ggml's and the gguf package's dequantisation give, (code - zero point) * scale, and
// the products of NumPy in float32.
#pragma once

#include "isa/bytes.h"
#include "isa/elements.h"
#include "matmul/formats.h"
#include "matmul/half.h"

namespace SB_NS {

using sb::kGroup;
using sb::kGroupWords;
using sb::kPanel;

// The codes of W columns, word `i` of a group: four bytes for each column.
template <class Q>
SB_INLINE VU coded_word(const word* at, int i) {
  constexpr int half = kGroupWords / 2, four = Q::Bits & 4;
  if (Q::Bits == 8) return load_words(at + i * kPanel);
  VU code{};
  if (four) code = (load_words(at + i % half * kPanel) >> (i / half * 4)) & 0x0f0f0f0fu;
  if (Q::Bits & 2) {
    const VU two = load_words(at + (four + i / half) * kPanel) >> (i % half * 2);
    code |= (two & 0x03030303u) << four;
  }
  if (Q::Bits & 1) {
    constexpr int before = Q::Bits - 1;
    code |= ((load_words(at + before * kPanel) >> i) & 0x01010101u) << before;
  }
  return code;
}

// What the codes of a book stand for, with the book's zero added.
template <class Book>
struct UnsignedBook {
  uint8_t values[16];
  constexpr UnsignedBook() : values() {
    for (int i = 0; i < 16; ++i) values[i] = static_cast<uint8_t>(Book::values[i] + Book::zero);
  }
};

template <class Book>
constexpr UnsignedBook<Book> kUnsignedBook{};

// The book of a panel's codes, with its zero added; null without one.
template <class Q>
SB_INLINE const uint8_t* book_of(const char* panel) {
  if constexpr (std::is_same_v<typename Q::Book, sb::OwnBook>)
    return reinterpret_cast<const uint8_t*>(panel);
  else if constexpr (Q::Book::Bits)
    return kUnsignedBook<typename Q::Book>.values;
  else
    return nullptr;
}

// The unsigned bytes that are multiplied for those codes.
template <class Q>
SB_INLINE VU factors_word(const uint8_t* book, const word* at, int i) {
  const VU codes = coded_word<Q>(at, i);
  return Q::Book::Bits ? look_up_bytes(book, codes) : codes;
}

// E4M3 as floats, by 2^-120: the exponent of a float32 in place of that of E4M3, so that subnormal ones
// are subnormal, too. The codes are the upper bytes.
SB_INLINE V scaled_e4m3(VU codes) {
  return from_bits(reinterpret_cast<VU>(reinterpret_cast<VI>(codes) >> 4) & 0x87f00000u);
}

// Scales and minima of W columns, for a part of a group.
template <class Q>
struct Scales {
  V scale, minimum;

  SB_INLINE Scales of(const char* panel, int64_t g, int part, int column) {
    const char* group = panel + Q::at(g);
    if constexpr (Q::IsNested) {
      const char* shared = panel + Q::shared_at(g) + Q::shared_bytes * column;
      const VI bytes = widen_bytes(group + Q::scales + part * kPanel + column);
      constexpr bool is_both = Q::scaling == sb::Scaling::kNibbles;
      const V factor = Q::HasFloats ? load(reinterpret_cast<const float*>(shared)) : load_halves(shared);
      if (Q::scaling == sb::Scaling::kE4m3OfFloats)
        return {scaled_e4m3(reinterpret_cast<VU>(bytes) << 24) * factor, V{}};
      const V scale = to_floats(is_both ? bytes & 15 : bytes) * factor;
      if (!Q::HasMinimum) return {scale, V{}};
      const V low = is_both ? to_floats((bytes >> 4) & 15) : load_bytes(group + Q::minima + column);
      return {scale, -(low * load_halves(shared + 2 * kPanel))};
    }
    return {load_halves(group + Q::scales + 2 * column),
            Q::HasMinimum ? load_halves(group + Q::minima + 2 * column) : V{}};
  }
};

// Zero points of W columns; those of 4 bits lie in the low halves of 16 bytes, then in the high ones.
// Those of 8 bits are less 128.
template <int Bits>
SB_INLINE V load_zero_points(const char* p, int column) {
  constexpr int half = kPanel / 2;
  if (Bits == 8) return to_floats(widen_bytes(p + column) + 128);
  return to_floats((widen_bytes(p + column % half) >> (column / half * 4)) & 15);
}

template <int Bits, int Size, bool IsBfloat>
struct Scales<sb::Integers<Bits, Size, IsBfloat>> {
  using Q = sb::Integers<Bits, Size, IsBfloat>;
  V scale, minimum;

  SB_INLINE Scales of(const char* panel, int64_t g, int, int column) {
    const char* scales = panel + Q::scales_at(g) + 2 * column;
    const V scale = IsBfloat ? load_bfloats(scales) : load_halves(scales);
    return {scale, -(scale * load_zero_points<Bits>(panel + Q::zeros_at(g), column))};
  }
};

// Powers of two by their exponents plus 127, of which 255 is NaN.
SB_INLINE V load_exponents(const char* p) {
  const VU e = reinterpret_cast<VU>(widen_bytes(p)) & 255u;
  const V least = from_bits(VU{} + 0x00400000u), none = from_bits(VU{} + 0x7fc00000u);
  return select(e == 0u, least, select(e == 255u, none, from_bits(e << 23)));
}

// Halved, as the book has doubled values.
template <>
struct Scales<sb::Mxfp4> {
  V scale, minimum;

  SB_INLINE Scales of(const char* panel, int64_t g, int, int column) {
    return {load_exponents(panel + sb::Mxfp4::scales_at(g) + column) * 0.5f, V{}};
  }
};

// Calls take(i, x) with the values of W columns at each place i of group g of a panel, in order.
template <class Q, class Take>
SB_INLINE void widen(Q, const char* panel, int64_t g, int column, Take&& take) {
  const auto* codes = reinterpret_cast<const word*>(panel + Q::at(g)) + column;
  Scales<Q> scales = Scales<Q>::of(panel, g, 0, column);
#pragma GCC unroll 8
  for (int i = 0; i < kGroupWords; ++i) {
    if (i == kGroupWords / Q::parts) scales = Scales<Q>::of(panel, g, 1, column);
    const VU four = factors_word<Q>(book_of<Q>(panel), codes, i);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      const V x = to_floats(reinterpret_cast<VI>((four >> (8 * t)) & 255u) - Q::zero);
      take(4 * i + t, Q::HasMinimum ? fused(x, scales.scale, scales.minimum) : x * scales.scale);
    }
  }
}

// What codes of 4 bits stand for: NF4 (QLoRA: Dettmers et al., 2023), FP4 as bitsandbytes has it.
constexpr float kNf4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
constexpr float kFp4[16] = {
    0.0f, 0.005208333333333333f, 0.6666666666666666f, 1.0f,
    0.3333333333333333f, 0.5f, 0.16666666666666666f, 0.25f,
    0.0f, -0.005208333333333333f, -0.6666666666666666f, -1.0f,
    -0.3333333333333333f, -0.5f, -0.16666666666666666f, -0.25f};

template <sb::Code C>
constexpr const float* table_of() {
  return C == sb::Code::kNf4 ? kNf4 : kFp4;
}

// What codes stand for; byte `t` of each word is one. Of E4M3 it is times 2^-120.
template <class Q>
SB_INLINE V meaning_of(VU four, int t) {
  if constexpr (Q::code == sb::Code::kE4m3)
    return scaled_e4m3(four << (24 - 8 * t));
  else if constexpr (Q::code == sb::Code::kInt8)
    return to_floats(reinterpret_cast<VI>(four << (24 - 8 * t)) >> 24);
  else
    return look_up(table_of<Q::code>(), four >> (8 * t));
}

template <class Q>
SB_INLINE V scales_of(const char* panel, int64_t g, int column) {
  return load(reinterpret_cast<const float*>(panel + Q::scales_at(g)) + column);
}

template <sb::Code C, int Size, class Take>
SB_INLINE void widen(sb::FloatCodes<C, Size>, const char* panel, int64_t g, int column, Take&& take) {
  using Q = sb::FloatCodes<C, Size>;
  const auto* codes = reinterpret_cast<const word*>(panel + Q::at(g)) + column;
  const V scale = scales_of<Q>(panel, g, column);
#pragma GCC unroll 8
  for (int i = 0; i < kGroupWords; ++i) {
    const VU four = coded_word<Q>(codes, i);
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) take(4 * i + t, meaning_of<Q>(four, t) * scale);
  }
}

template <class Take>
SB_INLINE void widen(sb::Float16, const char* panel, int64_t g, int column, Take&& take) {
#pragma GCC unroll 4
  for (int i = 0; i < kGroup; ++i)
    take(i, load_halves(panel + 2 * ((g * kGroup + i) * kPanel + column)));
}

template <class Take>
SB_INLINE void widen(sb::Bfloat16, const char* panel, int64_t g, int column, Take&& take) {
  const auto* from = reinterpret_cast<const word*>(panel + 2 * g * kGroup * kPanel) + column;
#pragma GCC unroll 4
  for (int i = 0; i < kGroup / 2; ++i) {
    const VU both = load_words(from + i * kPanel);
    take(2 * i, from_bits(both << 16));
    take(2 * i + 1, from_bits(both & 0xffff0000u));
  }
}

// One code of a packed group: place `i` along the sum.
template <class Q>
SB_INLINE int code_of(const char* group, int column, int i) {
  const auto byte = [&](int w) SB_LAMBDA {
    return static_cast<uint8_t>(group[(w * kPanel + column) * 4 + i % 4]);
  };
  const int w = i / 4, half = kGroupWords / 2, four = Q::Bits & 4;
  if (Q::Bits == 8) return byte(w);
  int code = four ? byte(w % half) >> (w / half * 4) & 15 : 0;
  if (Q::Bits & 2) code |= (byte(four + w / half) >> (w % half * 2) & 3) << four;
  if (Q::Bits & 1) code |= (byte(Q::Bits - 1) >> w & 1) << (Q::Bits - 1);
  return code;
}

// The value of that place.
template <int Bits, int Size, bool IsBfloat>
SB_INLINE float value_of(sb::Integers<Bits, Size, IsBfloat>, const char* panel, int64_t g,
                         int column, int i) {
  using Q = sb::Integers<Bits, Size, IsBfloat>;
  const char *scales = panel + Q::scales_at(g) + 2 * column, *zeros = panel + Q::zeros_at(g);
  const auto zero_byte = static_cast<uint8_t>(zeros[Bits == 8 ? column : column % (kPanel / 2)]);
  const int zero = Bits == 8 ? zero_byte ^ 128 : zero_byte >> (column / (kPanel / 2) * 4) & 15;
  const auto x = static_cast<float>(code_of<Q>(panel + Q::at(g), column, i) - zero);
  return x * (IsBfloat ? sb::from_bfloat(scales) : sb::from_half(scales));
}

SB_INLINE float value_of(sb::Mxfp4 kind, const char* panel, int64_t g, int column, int i) {
  const int number = sb::Mxfp4::Book::values[code_of<sb::Mxfp4>(panel + kind.at(g), column, i)];
  return static_cast<float>(number) * Scales<sb::Mxfp4>::of(panel, g, 0, column / W * W).scale[column % W];
}

template <sb::Code C, int Size>
SB_INLINE float value_of(sb::FloatCodes<C, Size>, const char* panel, int64_t g, int column, int i) {
  using Q = sb::FloatCodes<C, Size>;
  const int first = column / W * W;  // of the vector that it is in
  const auto* codes = reinterpret_cast<const word*>(panel + Q::at(g)) + first;
  const V values = meaning_of<Q>(coded_word<Q>(codes, i / 4), i % 4) * scales_of<Q>(panel, g, first);
  return values[column % W];
}

template <int Size, int Pair>
SB_INLINE float value_of(sb::Floats<Size, Pair>, const char* panel, int64_t g, int column, int i) {
  const char* at = panel + (((g * kGroup + i) / Pair * kPanel + column) * Pair + i % Pair) * Size;
  if (Size == 2 && Pair == 1) return sb::from_half(at);
  uint32_t u = 0;
  std::memcpy(&u, at, Size);
  if (Size == 2) u <<= 16;
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// The values of a column in group g.
template <class S>
SB_INLINE void read_group(S storage, const char* panel, int64_t g, int column, float* out) {
  for (int i = 0; i < kGroup; ++i) out[i] = value_of(storage, panel, g, column, i);
}

template <int Bits, int Part, bool HasMinimum, sb::Scaling S, class Book>
SB_INLINE void read_group(sb::Blocks<Bits, Part, HasMinimum, S, Book>, const char* panel, int64_t g, int column,
                          float* out) {
  using Q = sb::Blocks<Bits, Part, HasMinimum, S, Book>;
  const int first = column / W * W;  // of the vector that it is in
  const uint8_t* book = book_of<Q>(panel);
  for (int part = 0; part < Q::parts; ++part) {
    const Scales<Q> scales = Scales<Q>::of(panel, g, part, first);
    const float scale = scales.scale[column - first], minimum = scales.minimum[column - first];
    for (int i = part * Part; i < (part + 1) * Part; ++i) {
      const int code = code_of<Q>(panel + Q::at(g), column, i);
      const float scaled = static_cast<float>((Book::Bits ? book[code] : code) - Q::zero) * scale;
      out[i] = HasMinimum ? scaled + minimum : scaled;
    }
  }
}

// Row `row` of a packed matrix, with zeros up to `depth`.
template <class S>
static void read_row(const char* packed, int64_t row, int64_t depth, float* out) {
  const char* panel = packed + row / kPanel * S::panel_bytes(depth);
  for (int64_t g = 0; g < depth / kGroup; ++g)
    read_group(S{}, panel, g, static_cast<int>(row % kPanel), out + g * kGroup);
}

}  // namespace SB_NS
