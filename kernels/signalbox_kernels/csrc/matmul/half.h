// Floats of 16 bits as blocks store them, one number at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace sb {

inline float from_half(const void* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  uint32_t u = (h & 0x7fffu) << 13;
  float x;
  std::memcpy(&x, &u, sizeof u);
  x *= 0x1p112f;  // a subnormal one, too
  std::memcpy(&u, &x, sizeof u);
  if ((h & 0x7c00u) == 0x7c00u) u |= 0x7f800000u;  // not finite
  u |= (h & 0x8000u) << 16;
  std::memcpy(&x, &u, sizeof u);
  return x;
}

inline float from_bfloat(const void* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &u, sizeof u);
  return x;
}

// Rounds to the nearest, ties to even; values that are too large become infinite.
inline uint16_t to_half(float x) {
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

inline void put_half(uint8_t* p, float x) {
  const uint16_t h = to_half(x);
  std::memcpy(p, &h, sizeof h);
}

}  // namespace sb
