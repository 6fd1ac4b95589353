// Makes blocks of floats: Q8_0, symmetric by the largest value, and Q4_1, by least squares.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "matmul/formats.h"
#include "matmul/half.h"

namespace sb {

namespace {

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

extern "C" int32_t sb_quantise(int32_t storage, const float* values, int64_t count,
                               void* blocks) {
  auto* out = static_cast<uint8_t*>(blocks);
  if (storage != SB_STORED_Q8_0 && storage != SB_STORED_Q4_1) return 1;
  for (int64_t i = 0; i < count; ++i)
    if (storage == SB_STORED_Q8_0)
      sb::quantise_q8_0(values + i * sb::kGroup, out + i * 34);
    else
      sb::quantise_q4_1(values + i * sb::kGroup, out + i * 20);
  return 0;
}
