// Blocks of GGUF's types to panels of codes, and floats to such blocks.
//
// The types are those of ggml (Q4_0 and its kin: blocks of 32 along a row; the K types: 256, with
// scales of scales). Codes are kept as they are; products of two scales are rounded to half
// precision, which is finer than what they scale by a factor of a hundred.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "matmul/formats.h"
#include "matmul/pack.h"

namespace sb {

namespace {

enum BlockType : int32_t {
  Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14,
};

// A group of a row, which becomes a column of a packed group.
struct Group {
  uint8_t codes[kGroup];
  float scale[2];  // of each half; [0] of all, where a format has one
  float minimum;
};

float from_half(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  const uint32_t u = (h & 0x7fffu) << 13;
  float x;
  std::memcpy(&x, &u, sizeof u);
  x *= 0x1p112f;
  return h & 0x8000u ? -x : x;
}

// Rounds to the nearest, ties to even; values that are too large become infinite.
uint16_t to_half(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const uint32_t sign = u >> 16 & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (u >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (u < 0x38800000u) {  // a subnormal half: adding 0.5 aligns the last bit with its own
    float magnitude;
    std::memcpy(&magnitude, &u, sizeof u);
    magnitude += 0.5f;
    std::memcpy(&u, &magnitude, sizeof u);
    return static_cast<uint16_t>(sign | (u - 0x3f000000u));
  }
  u += 0xc8000fffu + (u >> 13 & 1u);
  return static_cast<uint16_t>(sign | u >> 13);
}

void put_half(uint8_t* p, float x) {
  const uint16_t h = to_half(x);
  std::memcpy(p, &h, sizeof h);
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

void read_q4_0(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g * 18;
  out.scale[0] = from_half(block);
  nibbles(block + 2, out.codes);
}

void read_q4_1(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g * 20;
  out.scale[0] = from_half(block);
  out.minimum = from_half(block + 2);
  nibbles(block + 4, out.codes);
}

void read_q5_0(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g * 22;
  out.scale[0] = out.scale[1] = from_half(block);
  nibbles(block + 6, out.codes);
  add_fifth_bits(block + 2, out.codes);
  for (uint8_t& code : out.codes) code += 16;  // 16 is its zero, 32 that of six bits
}

void read_q5_1(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g * 24;
  out.scale[0] = from_half(block);
  out.minimum = from_half(block + 2);
  nibbles(block + 8, out.codes);
  add_fifth_bits(block + 4, out.codes);
}

void read_q8_0(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g * 34;
  out.scale[0] = from_half(block);
  for (int i = 0; i < kGroup; ++i) out.codes[i] = block[2 + i] ^ 0x80u;
}

// Scale and minimum of Q4_K and Q5_K: eight pairs of six bits in twelve bytes, after d and dmin.
void read_k_scales(const uint8_t* block, int j, Group& out) {
  const uint8_t* s = block + 4;
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
  const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
  out.scale[0] = from_half(block) * static_cast<float>(scale);
  out.minimum = -from_half(block + 2) * static_cast<float>(minimum);
}

void read_q4_k(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 144;
  const int j = static_cast<int>(g % 8);
  read_k_scales(block, j, out);
  for (int i = 0; i < kGroup; ++i) out.codes[i] = block[16 + j / 2 * 32 + i] >> j % 2 * 4 & 15;
}

void read_q5_k(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 176;
  const int j = static_cast<int>(g % 8);
  read_k_scales(block, j, out);
  for (int i = 0; i < kGroup; ++i)
    out.codes[i] = static_cast<uint8_t>((block[48 + j / 2 * 32 + i] >> j % 2 * 4 & 15) |
                                        (block[16 + i] >> j & 1) << 4);
}

void read_q6_k(const uint8_t* row, int64_t g, Group& out) {
  const uint8_t* block = row + g / 8 * 210;
  const int half = static_cast<int>(g % 8) / 4, j = static_cast<int>(g % 4);
  const uint8_t* low = block + half * 64 + j % 2 * 32;
  const uint8_t* high = block + 128 + half * 32;
  for (int i = 0; i < kGroup; ++i)
    out.codes[i] = static_cast<uint8_t>((low[i] >> j / 2 * 4 & 15) | (high[i] >> j * 2 & 3) << 4);
  for (int part = 0; part < 2; ++part) {
    const auto scale = static_cast<int8_t>(block[192 + g % 8 * 2 + part]);
    out.scale[part] = from_half(block + 208) * static_cast<float>(scale);
  }
}

struct Reader {
  int32_t type, format;
  void (*read)(const uint8_t* row, int64_t group, Group& out);
};

constexpr Reader kReaders[] = {
    {Q4_0, SB_BITS4, read_q4_0},         {Q4_1, SB_BITS4_MINIMUM, read_q4_1},
    {Q5_0, SB_BITS6, read_q5_0},         {Q5_1, SB_BITS6_MINIMUM, read_q5_1},
    {Q8_0, SB_BITS8, read_q8_0},         {Q4_K, SB_BITS4_MINIMUM, read_q4_k},
    {Q5_K, SB_BITS6_MINIMUM, read_q5_k}, {Q6_K, SB_BITS6, read_q6_k},
};

const Reader* reader_of(int32_t type) {
  for (const Reader& reader : kReaders)
    if (reader.type == type) return &reader;
  return nullptr;
}

template <class Q>
void put_group(const Group& group, int column, uint8_t* packed) {
  constexpr int half = kGroupWords / 2;
  const auto byte = [&](int word, int i) -> uint8_t& {
    return packed[(word * kPanel + column) * 4 + i % 4];
  };
  for (int i = 0; i < kGroup; ++i) {
    const int word = i / 4, code = group.codes[i];
    if (Q::Bits == 8) {
      byte(word, i) = static_cast<uint8_t>(code);
      continue;
    }
    byte(word % half, i) |= static_cast<uint8_t>((code & 15) << word / half * 4);
    if (Q::Bits == 6) byte(half + word / 4, i) |= static_cast<uint8_t>(code >> 4 << word % 4 * 2);
  }
  for (int part = 0; part < Q::parts; ++part)
    put_half(packed + Q::scales + 2 * (part * kPanel + column), group.scale[part]);
  if (Q::HasMinimum) put_half(packed + Q::minima + 2 * column, group.minimum);
}

template <class Q>
void pack(const Reader& reader, const uint8_t* blocks, int64_t row_bytes, int64_t n, int64_t k,
          bool interleaved, uint8_t* packed) {
  const int64_t groups = round_up(k, kGroup) / kGroup;
  Group group;
  for (int64_t panel = 0; panel < padded_columns(n, interleaved) / kPanel; ++panel)
    for (int64_t g = 0; g < groups; ++g, packed += Q::bytes)
      for (int column = 0; column < kPanel; ++column) {
        const int64_t row = row_of(panel * kPanel + column, n, interleaved);
        if (row < 0) continue;
        reader.read(blocks + row * row_bytes, g, group);
        put_group<Q>(group, column, packed);
      }
}

// Sixteen lanes, whatever the compiler makes of them: two to a group.
typedef float Half __attribute__((vector_size(64)));
typedef int8_t HalfCodes __attribute__((vector_size(16)));

Half lanes(const float* x) {
  Half v;
  std::memcpy(&v, x, sizeof v);
  return v;
}

// To the nearest integer within [low, high].
Half rounded(Half x, float low, float high) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds
  const Half n = (x + magic) - magic, raised = n > low ? n : Half{} + low;
  return raised < high ? raised : Half{} + high;
}

void quantise_q8_0(const float* x, uint8_t* block) {
  float most = 0.0f;
  for (int i = 0; i < kGroup; ++i) most = std::max(most, std::fabs(x[i]));
  put_half(block, most / 127.0f);
  const float scale = from_half(block), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kGroup; i += 16) {
    const Half codes = rounded(lanes(x + i) * inverse, -127.0f, 127.0f);
    const auto bytes = __builtin_convertvector(codes, HalfCodes);
    std::memcpy(block + 2 + i, &bytes, sizeof bytes);
  }
}

// Returns the squared error of the 16 steps whose scale and minimum `block` begins with.
float error_of(const float* x, const uint8_t* block) {
  const float scale = from_half(block), low = from_half(block + 2);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  Half error{};
  for (int i = 0; i < kGroup; i += 16) {
    const Half v = lanes(x + i), wrong = v - (low + scale * rounded((v - low) * inverse, 0.0f, 15.0f));
    error += wrong * wrong;
  }
  float total = 0.0f;
  for (int i = 0; i < 16; ++i) total += error[i];
  return total;
}

// Shares of a range that are cut off below and above.
constexpr float kCuts[][2] = {{0.0f, 0.0f},   {0.04f, 0.04f}, {0.0f, 0.06f}, {0.06f, 0.0f},
                              {0.08f, 0.08f}, {0.0f, 0.12f},  {0.12f, 0.0f}};

// Chooses, of the values' range and somewhat narrower ones, the one with the least squared error.
void quantise_q4_1(const float* x, uint8_t* block) {
  const auto [least, most] = std::minmax_element(x, x + kGroup);
  const float width = *most - *least;
  float best = INFINITY;
  for (const auto& cut : kCuts) {
    uint8_t head[4];
    const float low = *least + width * cut[0], high = *most - width * cut[1];
    put_half(head, (high - low) / 15.0f);
    put_half(head + 2, low);
    const float error = error_of(x, head);
    if (&cut != kCuts && !(error < best)) continue;
    best = error;
    std::memcpy(block, head, sizeof head);
  }
  const float scale = from_half(block), low = from_half(block + 2);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  const Half first = rounded((lanes(x) - low) * inverse, 0.0f, 15.0f);
  const Half last = rounded((lanes(x + 16) - low) * inverse, 0.0f, 15.0f);
  for (int i = 0; i < 16; ++i)
    block[4 + i] = static_cast<uint8_t>(static_cast<int>(first[i]) | static_cast<int>(last[i]) << 4);
}

}  // namespace

}  // namespace sb

extern "C" int32_t sb_format_of(int32_t block_type) {
  const sb::Reader* reader = sb::reader_of(block_type);
  return reader ? reader->format : -1;
}

extern "C" size_t sb_quantised_bytes(int32_t format, int64_t n, int64_t k, int32_t interleaved) {
  const int64_t groups = sb::padded_columns(n, interleaved != 0) / sb::kPanel *
                         (sb::round_up(k, sb::kGroup) / sb::kGroup);
  return static_cast<size_t>(
      groups * sb::with_format(format, [](auto q) { return decltype(q)::bytes; }));
}

extern "C" void sb_pack_blocks(int32_t block_type, const void* blocks, int64_t row_bytes, int64_t n,
                               int64_t k, int32_t interleaved, void* packed) {
  const sb::Reader& reader = *sb::reader_of(block_type);
  sb::with_format(reader.format, [&](auto q) {
    sb::pack<decltype(q)>(reader, static_cast<const uint8_t*>(blocks), row_bytes, n, k,
                          interleaved != 0, static_cast<uint8_t*>(packed));
  });
}

extern "C" int32_t sb_quantise(int32_t block_type, const float* values, int64_t count,
                               void* blocks) {
  auto* out = static_cast<uint8_t*>(blocks);
  if (block_type != sb::Q8_0 && block_type != sb::Q4_1) return 1;
  for (int64_t i = 0; i < count; ++i)
    if (block_type == sb::Q8_0)
      sb::quantise_q8_0(values + i * sb::kGroup, out + i * 34);
    else
      sb::quantise_q4_1(values + i * sb::kGroup, out + i * 20);
  return 0;
}
