// Packing of weights: panels of 32 columns, from rows of floats, of GGUF's blocks, of whole numbers, or of
// codes of floats.
//
// The block types are those of ggml (Q4_0 and its kin: blocks of 32 along a row; the K types: 256,
// with scales of scales). Codes and scales are kept as they are. The layout is the same for every
// instruction set.

#include "matmul/pack.h"

#include <cstring>

#include "matmul/formats.h"

namespace sb {

namespace {

// A group of a row, which becomes a column of a packed group.
struct Group {
  uint8_t codes[kGroup];
  const uint8_t* scale;    // a half: of the group, or of 256 values, where it may be a float
  const uint8_t* minimum;  // likewise, or null
  const uint8_t* book;     // 16 numbers, of weights that have their own
  uint8_t scales[2];       // of nested ones: of each part, perhaps with its minimum
  uint8_t low;             // of nested ones: of the minimum
};

// Multiplies a scale of E4M3 by 2^120, which decoding then saves.
void raise_float(uint8_t* at) {
  float x;
  std::memcpy(&x, at, sizeof x);
  x *= 0x1p120f;
  std::memcpy(at, &x, sizeof x);
}

void nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 15;
    codes[i + 16] = bytes[i] >> 4;
  }
}

void add_fifth_bits(const uint8_t* bits, uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) codes[i] |= static_cast<uint8_t>((bits[i / 8] >> i % 8 & 1) << 4);
}

void read(Q4_0, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 18;
  nibbles(out.scale + 2, out.codes);
}

void read(Q4_1, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 20;
  out.minimum = out.scale + 2;
  nibbles(out.scale + 4, out.codes);
}

void read(Q5_0, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 22;
  nibbles(out.scale + 6, out.codes);
  add_fifth_bits(out.scale + 2, out.codes);
}

void read(Q5_1, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 24;
  out.minimum = out.scale + 2;
  nibbles(out.scale + 8, out.codes);
  add_fifth_bits(out.scale + 4, out.codes);
}

void read(Q8_0, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 34;
  for (int i = 0; i < kGroup; ++i) out.codes[i] = out.scale[2 + i] ^ 0x80u;
}

// Scale and minimum of Q4_K and Q5_K: eight pairs of six bits in twelve bytes, after the halves.
void read_k_scales(const uint8_t* block, int64_t j, Group& out) {
  const uint8_t* s = block + 4;
  out.scale = block;
  out.minimum = block + 2;
  out.scales[0] = static_cast<uint8_t>(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
  out.low = static_cast<uint8_t>(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
}

void read(Q4_K, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 144;
  const int64_t j = g % 8;
  read_k_scales(block, j, out);
  for (int i = 0; i < kGroup; ++i) out.codes[i] = block[16 + j / 2 * 32 + i] >> j % 2 * 4 & 15;
}

void read(Q5_K, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 176;
  const int64_t j = g % 8;
  read_k_scales(block, j, out);
  for (int i = 0; i < kGroup; ++i)
    out.codes[i] = static_cast<uint8_t>((block[48 + j / 2 * 32 + i] >> j % 2 * 4 & 15) |
                                        (block[16 + i] >> j & 1) << 4);
}

void read(Q6_K, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 210;
  const int64_t half = g % 8 / 4, j = g % 4;
  const uint8_t* low = block + half * 64 + j % 2 * 32;
  const uint8_t* high = block + 128 + half * 32;
  for (int i = 0; i < kGroup; ++i)
    out.codes[i] = static_cast<uint8_t>((low[i] >> j / 2 * 4 & 15) | (high[i] >> j * 2 & 3) << 4);
  std::memcpy(out.scales, block + 192 + g % 8 * 2, 2);
  out.scale = block + 208;
}

void read(Q2_K, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 84;
  const int64_t j = g % 8;
  for (int i = 0; i < kGroup; ++i) out.codes[i] = block[16 + j / 4 * 32 + i] >> j % 4 * 2 & 3;
  std::memcpy(out.scales, block + j * 2, 2);
  out.scale = block + 80;
  out.minimum = block + 82;
}

// Scale k is six bits less 32: four in byte k % 8, two in byte 8 + k % 4.
void read(Q3_K, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 110;
  const uint8_t* s = block + 96;
  const int64_t j = g % 8;
  for (int i = 0; i < kGroup; ++i)
    out.codes[i] = static_cast<uint8_t>((block[32 + j / 4 * 32 + i] >> j % 4 * 2 & 3) |
                                        (block[i] >> j & 1) << 2);
  for (int64_t k = 2 * j; k < 2 * j + 2; ++k)
    out.scales[k % 2] = static_cast<uint8_t>(
        ((s[k % 8] >> k / 8 * 4 & 15) | (s[8 + k % 4] >> k / 4 * 2 & 3) << 4) - 32);
  out.scale = block + 108;
}

void read(Iq4Nl, const uint8_t* row, int64_t g, Group& out) { read(Q4_0{}, row, g, out); }

void read(Iq4Xs, const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 136;
  const int64_t j = g % 8;
  nibbles(block + 8 + j * 16, out.codes);
  out.scales[0] = static_cast<uint8_t>(
      ((block[4 + j / 2] >> j % 2 * 4 & 15) | (block[2 + j / 4] >> j % 4 * 2 & 3) << 4) - 32);
  out.scale = block;
}

void pairs(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < kGroup; ++i) codes[i] = bytes[i / 2] >> i % 2 * 4 & 15;
}

// Blocks of 32: a float, which is that of all the row's, two scales, and codes in pairs.
void read(Nvfp4, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g * 22;
  std::memcpy(out.scales, out.scale + 4, 2);
  pairs(out.scale + 6, out.codes);
}

// Blocks of 256: a float, the book, which is that of all of the matrix, scales, and codes in pairs.
void read(Codebook, const uint8_t* row, int64_t g, Group& out) {
  out.scale = row + g / 8 * 164;
  out.book = out.scale + 4;
  std::memcpy(out.scales, out.scale + 20 + g % 8 * 2, 2);
  pairs(out.scale + 36 + g % 8 * 16, out.codes);
}

// Four codes at a time, as words of bytes. The low four bits of two words are one word, if a code has as
// many; then come two bits of each word, four words in one, and then one bit of each.
template <class Q>
void put_codes(const uint8_t* codes, int column, uint8_t* packed) {
  constexpr int half = kGroupWords / 2, four = Q::Bits & 4;
  uint32_t words[kGroupWords];
  std::memcpy(words, codes, sizeof words);
  const auto put = [&](int word, uint32_t bytes) {
    std::memcpy(packed + (word * kPanel + column) * 4, &bytes, sizeof bytes);
  };
  if (Q::Bits == 8) {
    for (int i = 0; i < kGroupWords; ++i) put(i, words[i]);
    return;
  }
  for (int i = 0; four && i < half; ++i)
    put(i, (words[i] & 0x0F0F0F0Fu) | (words[half + i] & 0x0F0F0F0Fu) << 4);
  if (Q::Bits & 2) {
    uint32_t pairs[2] = {0, 0};
    for (int i = 0; i < kGroupWords; ++i)
      pairs[i / half] |= (words[i] >> four & 0x03030303u) << i % half * 2;
    put(four, pairs[0]);
    put(four + 1, pairs[1]);
  }
  if (Q::Bits & 1) {
    uint32_t last = 0;
    for (int i = 0; i < kGroupWords; ++i) last |= (words[i] >> (Q::Bits - 1) & 0x01010101u) << i;
    put(Q::Bits - 1, last);
  }
}

template <class Q>
void put_group(const Group& group, int64_t g, int column, uint8_t* panel) {
  uint8_t* packed = panel + Q::at(g);
  put_codes<Q>(group.codes, column, packed);
  if constexpr (!Q::IsNested) {
    std::memcpy(packed + Q::scales + 2 * column, group.scale, 2);
    if (Q::HasMinimum) std::memcpy(packed + Q::minima + 2 * column, group.minimum, 2);
  } else {
    for (int part = 0; part < Q::parts; ++part)
      packed[Q::scales + part * kPanel + column] = group.scales[part];
    uint8_t* shared = panel + Q::shared_at(g) + Q::shared_bytes * column;
    std::memcpy(shared, group.scale, Q::shared_bytes);
    if (Q::scaling == Scaling::kE4m3OfFloats) raise_float(shared);
    if (Q::HasOwnBook)
      for (int i = 0; i < 16; ++i) panel[i] = group.book[i] ^ 0x80u;
    if (!Q::HasMinimum) return;
    if (Q::has_minima) packed[Q::minima + column] = group.low;
    std::memcpy(shared + 2 * kPanel, group.minimum, 2);
  }
}

template <class Q>
void pack_column(Q blocks, const uint8_t* row, int64_t k, int column, uint8_t* panel) {
  Group group;
  for (int64_t g = 0; g < round_up(k, kGroup) / kGroup; ++g) {
    read(blocks, row, g, group);
    put_group<Q>(group, g, column, panel);
  }
}

// Blocks of a row are a scale, the zero point as a byte, and codes in order, the first of two in the
// low half of its byte.
template <int Bits, int Size, bool IsBfloat>
void pack_column(Integers<Bits, Size, IsBfloat>, const uint8_t* row, int64_t k, int column,
                 uint8_t* panel) {
  using Q = Integers<Bits, Size, IsBfloat>;
  constexpr int head = 3, half = kPanel / 2, group_bytes = kGroup * Bits / 8;
  uint8_t codes[kGroup];
  for (int64_t g = 0; g < round_up(k, kGroup) / kGroup; ++g) {
    const uint8_t* block = row + g / Q::groups * (head + Q::groups * group_bytes);
    const uint8_t* from = block + head + g % Q::groups * group_bytes;
    for (int i = 0; i < kGroup; ++i)
      codes[i] = Bits == 8 ? from[i] : from[i / 2] >> i % 2 * 4 & 15;
    put_codes<Q>(codes, column, panel + Q::at(g));
    if (g % Q::groups) continue;
    std::memcpy(panel + Q::scales_at(g) + 2 * column, block, 2);
    uint8_t* zeros = panel + Q::zeros_at(g);
    if (Bits == 8)
      zeros[column] = block[2] ^ 0x80u;
    else
      zeros[column % half] |= static_cast<uint8_t>(block[2] << column / half * 4);
  }
}

// Blocks of a row are a scale and codes in order, as those of whole numbers.
void pack_column(Mxfp4 kind, const uint8_t* row, int64_t k, int column, uint8_t* panel) {
  uint8_t codes[kGroup];
  for (int64_t g = 0; g < round_up(k, kGroup) / kGroup; ++g) {
    const uint8_t* block = row + g * 17;
    pairs(block + 1, codes);
    put_codes<Mxfp4>(codes, column, panel + kind.at(g));
    panel[kind.scales_at(g) + column] = block[0];
  }
}

template <Code Code_, int Size>
void pack_column(FloatCodes<Code_, Size>, const uint8_t* row, int64_t k, int column, uint8_t* panel) {
  using Q = FloatCodes<Code_, Size>;
  constexpr int scale_bytes = 4, group_bytes = kGroup * Q::Bits / 8;
  uint8_t codes[kGroup];
  for (int64_t g = 0; g < round_up(k, kGroup) / kGroup; ++g) {
    const uint8_t* block = row + g / Q::groups * (scale_bytes + Q::groups * group_bytes);
    const uint8_t* from = block + scale_bytes + g % Q::groups * group_bytes;
    for (int i = 0; i < kGroup; ++i)
      codes[i] = Q::Bits == 8 ? from[i] : from[i / 2] >> i % 2 * 4 & 15;
    put_codes<Q>(codes, column, panel + Q::at(g));
    if (g % Q::groups) continue;
    uint8_t* scale = panel + Q::scales_at(g) + scale_bytes * column;
    std::memcpy(scale, block, scale_bytes);
    if (Code_ == Code::kE4m3) raise_float(scale);
  }
}

template <int Size, int Pair>
void pack_column(Floats<Size, Pair>, const uint8_t* row, int64_t k, int column, uint8_t* panel) {
  for (int64_t i = 0; i < k; ++i)
    std::memcpy(panel + ((i / Pair * kPanel + column) * Pair + i % Pair) * Size, row + i * Size, Size);
}

}  // namespace

}  // namespace sb

extern "C" size_t sb_packed_bytes(int32_t storage, int64_t n, int64_t k, int32_t interleaved) {
  const int64_t panels = sb::padded_columns(n, interleaved != 0) / sb::kPanel;
  return static_cast<size_t>(panels * sb::panel_bytes(storage, sb::round_up(k, sb::kPanel)));
}

extern "C" void sb_pack(int32_t storage, const void* rows, int64_t row_bytes, int64_t n, int64_t k,
                        int32_t interleaved, void* packed) {
  const int64_t bytes = sb::panel_bytes(storage, sb::round_up(k, sb::kPanel));
  const auto* from = static_cast<const uint8_t*>(rows);
  auto* to = static_cast<uint8_t*>(packed);
  sb::with_storage(storage, [&](auto type) {
    for (int64_t column = 0; column < sb::padded_columns(n, interleaved != 0); ++column) {
      const int64_t row = sb::row_of(column, n, interleaved != 0);
      if (row < 0) continue;
      sb::pack_column(type, from + row * row_bytes, k, static_cast<int>(column % sb::kPanel),
                      to + column / sb::kPanel * bytes);
    }
  });
}
