// Packing of weights: panels of 32 columns, each panel a run of words along the sum. The layout is
// the same for every instruction set.

#include "matmul/pack.h"

namespace sb {

namespace {

template <class T, int G>
void pack(const T* weight, int64_t n, int64_t k, bool interleaved, T* packed) {
  const int64_t depth = round_up(k, kPanel);
  for (int64_t column = 0; column < padded_columns(n, interleaved); ++column) {
    const int64_t row = row_of(column, n, interleaved);
    if (row < 0) continue;
    const T* from = weight + row * k;
    T* to = packed + column / kPanel * kPanel * depth + column % kPanel * G;
    for (int64_t i = 0; i < k; ++i) to[i / G * kPanel * G + i % G] = from[i];
  }
}

}  // namespace

}  // namespace sb

extern "C" size_t sb_packed_bytes(int32_t element, int64_t n, int64_t k, int32_t interleaved) {
  const int64_t size = element == SB_BF16 ? 2 : 4;
  return static_cast<size_t>(sb::padded_columns(n, interleaved != 0) *
                             sb::round_up(k, sb::kPanel) * size);
}

extern "C" void sb_pack(int32_t element, const void* weight, int64_t n, int64_t k,
                        int32_t interleaved, void* packed) {
  if (element == SB_BF16)
    sb::pack<uint16_t, 2>(static_cast<const uint16_t*>(weight), n, k, interleaved != 0,
                          static_cast<uint16_t*>(packed));
  else
    sb::pack<float, 1>(static_cast<const float*>(weight), n, k, interleaved != 0,
                       static_cast<float*>(packed));
}
