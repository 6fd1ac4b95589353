// How packed weights lie in panels, and how the left side of products of bytes is coded.
//
// A panel is 32 columns. Along the sum blocks come in groups of 32. A group is codes in words of four
// (as the byte dot products of all instruction sets read them), then each column's scale and, where
// the type has one, its minimum. The K types nest them: a scale is a small whole number times a half
// for 256 values, and these halves follow each eight groups. So every block type takes the bytes of
// its file, but for K scales of six bits, which are whole bytes here: at most 1.04 times as many.
//
// A code of 4 bits may be a place in a book of 16 whole numbers. It is looked up where it is read, and
// multiplied as that number. Such a book may lie in the weight, before the groups of each panel.
//
// Whole numbers in groups of 32, 64 or 128, as AWQ, GPTQ and compressed-tensors have them, lie in the
// same groups of 32, with a line of scales before each group of theirs and a line of zero points
// before several of these, so that codes begin on cache lines and a last group may be smaller.
//
// Codes of floats (FP8, NF4, FP4, MXFP4) lie so, too, each line of scales before the groups that share
// it. They are multiplied as floats; those of MXFP4 also as whole numbers, which its values are when doubled.
//
// Where a weight is multiplied as bytes, the left side is coded anew for every row, 8 or 16 bits and a
// scale per group (llama.cpp's Q8 blocks have 8), so that a row's result depends on nothing but the row.
#pragma once

#include <type_traits>

#include "program/step.h"

namespace sb {

constexpr int kGroup = 32;
constexpr int kGroupWords = kGroup / 4;

// Codes of 32 neighbours in a row of the left side: about scale * codes.
struct CodedGroup {
  int8_t codes[kGroup];
  float scale;            // NaN if any of the 32 is not finite
  float total;            // the codes' sum
  int32_t minus;          // the same, negative
  int32_t minus_part[2];  // likewise of the first and the last 16
};

// The same with codes of 16 bits, which are 256 * codes + low; the sums are theirs.
struct WideGroup : CodedGroup {
  int8_t low[kGroup];
};

constexpr int32_t code_bytes(int32_t row) { return row == SB_WIDE_CODES ? 2 : row == SB_CODES ? 1 : 0; }

constexpr int64_t coded_group_bytes(int32_t code_bytes) {
  return static_cast<int64_t>(code_bytes == 2 ? sizeof(WideGroup) : sizeof(CodedGroup));
}

// The scales of blocks: a half for each group, or a byte for each part under what 256 values share. The
// byte is a whole number, perhaps with the part's minimum in its upper half, or an E4M3 that is no NaN.
// What is shared is a half, or a float, of E4M3 times 2^120.
enum class Scaling { kHalves, kBytes, kNibbles, kBytesOfFloats, kE4m3OfFloats };

// Books of 16 signed numbers. With `zero` added they are unsigned, of `Bits` bits.
struct NoBook {
  static constexpr int Bits = 0, zero = 0;
};

struct OwnBook {
  static constexpr int Bits = 8, zero = 128;
};

struct Iq4Values {
  static constexpr int Bits = 8, zero = 128;
  static constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
};

// E2M1, doubled.
struct E2m1Values {
  static constexpr int Bits = 5, zero = 12;
  static constexpr int8_t values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
};

// `Bits` per code; `Part` codes share a scale. With a minimum a weight is scale * code + minimum,
// without one it is scale * (code - zero), where a code of a book is the number that it has there.
template <int Bits_, int Part_, bool HasMinimum_, Scaling Scaling_, class Book_ = NoBook>
struct Blocks {
  using Book = Book_;
  static constexpr bool HasOwnBook = std::is_same_v<Book, OwnBook>;
  static constexpr int Bits = Bits_;
  static constexpr int Part = Part_;
  static constexpr bool HasMinimum = HasMinimum_;
  static constexpr Scaling scaling = Scaling_;
  static constexpr bool IsNested = Scaling_ != Scaling::kHalves;
  static constexpr bool HasFloats = Scaling_ >= Scaling::kBytesOfFloats;
  static constexpr int parts = kGroup / Part;
  static_assert(parts == 1 || IsNested, "scales of parts are bytes");
  static_assert(parts == 1 || !HasMinimum || Scaling_ == Scaling::kNibbles, "a byte is a group's minimum");
  static constexpr int product_bits = Book::Bits ? Book::Bits : Bits;  // of what is multiplied
  static constexpr int zero = HasMinimum ? 0 : Book::Bits ? Book::zero : 1 << (Bits - 1);
  // Bits of a code lie apart, the low ones first: four of all words, then two, then one, as far as
  // the code has them. Word i of the first four holds the low four bits of words i and i + 4; bits
  // 2 i of word h of two are those of word 4 h + i; bits i of the bytes of one are those of word i.
  static constexpr int low_words = Bits == 8 ? kGroupWords : kGroupWords / 2;
  static constexpr int words = Bits;
  static constexpr int64_t scale_bytes = IsNested ? 1 : 2;
  static constexpr int64_t scales = words * 4 * kPanel;  // where they begin, in bytes
  static constexpr int64_t minima = scales + parts * scale_bytes * kPanel;
  static constexpr bool has_minima = HasMinimum && Scaling_ != Scaling::kNibbles;
  static constexpr int64_t group_bytes = minima + (has_minima ? scale_bytes * kPanel : 0);
  static constexpr int64_t groups = IsNested ? 8 : 1;  // that share scales, which follow them
  static constexpr int64_t shared_bytes = HasFloats ? 4 : 2;
  static constexpr int64_t shared = groups * group_bytes;
  static constexpr int64_t run_bytes = shared + (IsNested ? shared_bytes * kPanel * (1 + HasMinimum) : 0);
  static constexpr int64_t fetched = run_bytes / groups;  // a group
  static constexpr int64_t head = HasOwnBook ? 64 : 0;    // of a panel: its book

  // Where group g begins in its panel, and the scales that it shares.
  static constexpr int64_t at(int64_t g) {
    return head + g / groups * run_bytes + g % groups * group_bytes;
  }
  static constexpr int64_t shared_at(int64_t g) { return head + g / groups * run_bytes + shared; }
  static constexpr int64_t panel_bytes(int64_t depth) {
    return head + round_up(depth, groups * kGroup) / (groups * kGroup) * run_bytes;
  }
};

// Whole numbers of `Bits`, of which `Size` along a row share a scale of 16 bits, a half or a bfloat16,
// and a zero point: scale * (code - zero point), which has at most 24 significant bits, too.
template <int Bits_, int Size, bool IsBfloat_>
struct Integers {
  using Book = NoBook;
  static constexpr int Bits = Bits_, product_bits = Bits_;
  static constexpr bool IsBfloat = IsBfloat_;
  static constexpr int Part = kGroup, parts = 1, zero = 0;
  static constexpr bool HasMinimum = true;  // which is -scale * zero point
  static constexpr int low_words = Bits == 8 ? kGroupWords : kGroupWords / 2;
  static constexpr int64_t group_bytes = low_words * 4 * kPanel;
  static constexpr int64_t groups = Size / kGroup;  // that share scales
  static constexpr int64_t line = 2 * kPanel;       // of scales
  static constexpr int64_t zero_bytes = Bits * kPanel / 8;
  static constexpr int64_t runs = line / zero_bytes;  // whose zero points are a line
  static constexpr int64_t fetched = group_bytes + (line + zero_bytes) / groups;  // a group, about

  static constexpr int64_t at(int64_t g) {
    const int64_t run = g / groups;
    return g * group_bytes + (run + 1 + run / runs + 1) * line;
  }
  static constexpr int64_t scales_at(int64_t g) { return at(g / groups * groups) - line; }
  static constexpr int64_t zeros_at(int64_t g) {
    const int64_t run = g / groups;
    return scales_at(run / runs * runs * groups) - line + run % runs * zero_bytes;
  }
  static constexpr int64_t panel_bytes(int64_t depth) { return at(depth / kGroup - 1) + group_bytes; }
};

// What the codes of a float stand for: E4M3, the places of a table of 16, or whole numbers with a sign.
enum class Code { kE4m3, kNf4, kFp4, kInt8 };

// Codes of which `Size` along a row share a scale, a float32. A weight is scale * what the code stands
// for, rounded once.
template <Code Code_, int Size>
struct FloatCodes {
  static constexpr Code code = Code_;
  static constexpr int Bits = Code_ == Code::kE4m3 || Code_ == Code::kInt8 ? 8 : 4;
  static constexpr int low_words = Bits == 8 ? kGroupWords : kGroupWords / 2;
  static constexpr int64_t group_bytes = low_words * 4 * kPanel;
  static constexpr int64_t groups = Size / kGroup;  // that share scales
  static constexpr int64_t line = 4 * kPanel;       // of scales
  static constexpr int64_t fetched = group_bytes + line / groups;  // a group, about

  static constexpr int64_t at(int64_t g) { return g * group_bytes + (g / groups + 1) * line; }
  static constexpr int64_t scales_at(int64_t g) { return at(g / groups * groups) - line; }
  static constexpr int64_t panel_bytes(int64_t depth) { return at(depth / kGroup - 1) + group_bytes; }
};

// E2M1 of which 32 along a row share a power of two, whose exponent plus 127 is a byte (E8M0); 255 is NaN.
// The scales of two groups are a line before them.
struct Mxfp4 {
  using Book = E2m1Values;
  static constexpr int Bits = 4, product_bits = Book::Bits, zero = Book::zero;
  static constexpr int Part = kGroup, parts = 1;
  static constexpr bool HasMinimum = false;
  static constexpr int low_words = kGroupWords / 2;
  static constexpr int64_t group_bytes = low_words * 4 * kPanel;
  static constexpr int64_t groups = 2, line = groups * kPanel;
  static constexpr int64_t fetched = group_bytes + kPanel;

  static constexpr int64_t at(int64_t g) { return g * group_bytes + (g / groups + 1) * line; }
  static constexpr int64_t scales_at(int64_t g) { return at(g / groups * groups) - line + g % groups * kPanel; }
  static constexpr int64_t panel_bytes(int64_t depth) { return at(depth / kGroup - 1) + group_bytes; }
};

using E4m3 = FloatCodes<Code::kE4m3, 128>;
using Nf4 = FloatCodes<Code::kNf4, 64>;
using Fp4 = FloatCodes<Code::kFp4, 64>;
using Int8 = FloatCodes<Code::kInt8, 128>;

using Q4_0 = Blocks<4, 32, false, Scaling::kHalves>;
using Q4_1 = Blocks<4, 32, true, Scaling::kHalves>;
using Q5_0 = Blocks<5, 32, false, Scaling::kHalves>;
using Q5_1 = Blocks<5, 32, true, Scaling::kHalves>;
using Q8_0 = Blocks<8, 32, false, Scaling::kHalves>;
using Q2_K = Blocks<2, 16, true, Scaling::kNibbles>;
using Q3_K = Blocks<3, 16, false, Scaling::kBytes>;
using Q4_K = Blocks<4, 32, true, Scaling::kBytes>;
using Q5_K = Blocks<5, 32, true, Scaling::kBytes>;
using Q6_K = Blocks<6, 16, false, Scaling::kBytes>;
using Iq4Nl = Blocks<4, 32, false, Scaling::kHalves, Iq4Values>;
using Iq4Xs = Blocks<4, 32, false, Scaling::kBytes, Iq4Values>;
using Codebook = Blocks<4, 16, false, Scaling::kBytesOfFloats, OwnBook>;
using Nvfp4 = Blocks<4, 16, false, Scaling::kE4m3OfFloats, E2m1Values>;

// Weights of `Size` bytes, `Pair` of a column beside each other.
template <int Size_, int Pair_>
struct Floats {
  static constexpr int Size = Size_, Pair = Pair_;
  static constexpr int64_t fetched = kGroup * kPanel * Size;  // a group
  static constexpr int64_t panel_bytes(int64_t depth) { return depth * kPanel * Size; }
};

using Float32 = Floats<4, 1>;
using Float16 = Floats<2, 1>;
using Bfloat16 = Floats<2, 2>;

constexpr bool is_float_codes(int32_t storage) { return storage >= SB_STORED_E4M3; }

constexpr bool is_integers(int32_t storage) {
  return storage >= SB_STORED_INTEGERS && !is_float_codes(storage);
}

constexpr bool is_blocks(int32_t storage) {
  const bool is_listed = storage >= SB_STORED_Q4_0 && storage <= SB_STORED_LAST_CODEBOOK;
  return (is_listed && storage != SB_STORED_BF16) || is_integers(storage) || storage == SB_STORED_MXFP4;
}

// Calls f with the type of a storage that is whole numbers in groups.
template <int Bits, bool IsBfloat, class F>
__attribute__((always_inline)) inline auto with_group(int32_t storage, F&& f) {
  switch (storage & SB_GROUP_MASK) {
    case SB_GROUP_32: return f(Integers<Bits, 32, IsBfloat>{});
    case SB_GROUP_64: return f(Integers<Bits, 64, IsBfloat>{});
    default: return f(Integers<Bits, 128, IsBfloat>{});
  }
}

template <class F>
__attribute__((always_inline)) inline auto with_integers(int32_t storage, F&& f) {
  const bool is_bfloat = storage & SB_SCALES_BF16;
  if (storage & SB_CODES_8)
    return is_bfloat ? with_group<8, true>(storage, f) : with_group<8, false>(storage, f);
  return is_bfloat ? with_group<4, true>(storage, f) : with_group<4, false>(storage, f);
}

// Calls f with the type of a storage that is blocks.
template <class F>
__attribute__((always_inline)) inline auto with_blocks(int32_t storage, F&& f) {
  if (is_integers(storage)) return with_integers(storage, static_cast<F&&>(f));
  switch (storage) {
    case SB_STORED_Q4_0: return f(Q4_0{});
    case SB_STORED_Q4_1: return f(Q4_1{});
    case SB_STORED_Q5_0: return f(Q5_0{});
    case SB_STORED_Q5_1: return f(Q5_1{});
    case SB_STORED_Q2_K: return f(Q2_K{});
    case SB_STORED_Q3_K: return f(Q3_K{});
    case SB_STORED_Q4_K: return f(Q4_K{});
    case SB_STORED_Q5_K: return f(Q5_K{});
    case SB_STORED_Q6_K: return f(Q6_K{});
    case SB_STORED_IQ4_NL: return f(Iq4Nl{});
    case SB_STORED_IQ4_XS: return f(Iq4Xs{});
    case SB_STORED_NVFP4: return f(Nvfp4{});
    case SB_STORED_MXFP4: return f(Mxfp4{});
    case SB_STORED_Q8_0: return f(Q8_0{});
    default: return f(Codebook{});
  }
}

// Calls f with the type of a storage that is codes of floats.
template <class F>
__attribute__((always_inline)) inline auto with_float_codes(int32_t storage, F&& f) {
  switch (storage) {
    case SB_STORED_NF4: return f(Nf4{});
    case SB_STORED_FP4: return f(Fp4{});
    case SB_STORED_MXFP4: return f(Mxfp4{});
    case SB_STORED_INT8: return f(Int8{});
    default: return f(E4m3{});
  }
}

// Calls f with the type of any storage.
template <class F>
__attribute__((always_inline)) inline auto with_storage(int32_t storage, F&& f) {
  if (is_float_codes(storage)) return with_float_codes(storage, static_cast<F&&>(f));
  switch (storage) {
    case SB_STORED_F32: return f(Float32{});
    case SB_STORED_F16: return f(Float16{});
    case SB_STORED_BF16: return f(Bfloat16{});
    default: return with_blocks(storage, static_cast<F&&>(f));
  }
}

// Bytes of a panel; depth is a multiple of 32.
inline int64_t panel_bytes(int32_t storage, int64_t depth) {
  return with_storage(storage, [=](auto s) { return decltype(s)::panel_bytes(depth); });
}

}  // namespace sb
