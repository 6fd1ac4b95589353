// How quantised weights lie in panels, and how the left side of their products is coded.
//
// Along the sum everything comes in groups of 32. A weight's group is 32 columns of codes in words
// of four (as the byte dot products of all instruction sets read them), then each column's scale
// and, where the format has one, its minimum, in half precision. The left side is coded anew for
// every row, 8 bits and a scale per group (llama.cpp's Q8 blocks do the same), so that a row's
// result depends on nothing but the row.
#pragma once

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

// `Bits` per code; `Part` codes share a scale. With a minimum a weight is scale * code + minimum,
// without one it is scale * (code - offset).
template <int Bits_, int Part_, bool HasMinimum_>
struct Format {
  static constexpr int Bits = Bits_;
  static constexpr int Part = Part_;
  static constexpr bool HasMinimum = HasMinimum_;
  static constexpr int parts = kGroup / Part;
  static_assert(parts == 1 || !HasMinimum, "a left side's total is that of a group");
  static constexpr int offset_shift = Bits - 1;
  // Codes of 4 and 6 bits: word i holds the low four bits of words i and i + 4. Codes of 6 bits
  // have two more words: bits 2 i of word h are the high ones of word 4 h + i.
  static constexpr int low_words = Bits == 8 ? kGroupWords : kGroupWords / 2;
  static constexpr int words = low_words + (Bits == 6 ? 2 : 0);
  static constexpr int64_t scales = words * 4 * kPanel;  // where they begin, in bytes
  static constexpr int64_t minima = scales + parts * 2 * kPanel;
  static constexpr int64_t bytes = minima + (HasMinimum ? 2 * kPanel : 0);
};

using Bits4 = Format<4, 32, false>;
using Bits4Minimum = Format<4, 32, true>;
using Bits6 = Format<6, 16, false>;
using Bits6Minimum = Format<6, 32, true>;
using Bits8 = Format<8, 32, false>;

// Calls f with the format's type.
template <class F>
__attribute__((always_inline)) inline auto with_format(int32_t format, F&& f) {
  switch (format) {
    case SB_BITS4: return f(Bits4{});
    case SB_BITS4_MINIMUM: return f(Bits4Minimum{});
    case SB_BITS6: return f(Bits6{});
    case SB_BITS6_MINIMUM: return f(Bits6Minimum{});
    default: return f(Bits8{});
  }
}

constexpr int64_t coded_row_bytes(int64_t width) {
  return round_up(width, kGroup) / kGroup * static_cast<int64_t>(sizeof(CodedGroup));
}

}  // namespace sb
