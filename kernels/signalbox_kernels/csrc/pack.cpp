// Packing of weights: panels of 32 columns, each panel a run of words along the sum.
//
// An interleaved matrix is [gate; up]: a panel holds 16 columns of gate, then the same 16 of up, so
// that SiLU of one times the other is the panel's own affair. Rows of the matrix are the columns of
// the panel. The layout is the same for every instruction set.

#include "step.h"

namespace sb {

namespace {

// Which row of the matrix is column `column` of the packed one, or -1 for padding.
int64_t row_of(int64_t column, int64_t n, bool interleaved) {
  if (!interleaved) return column < n ? column : -1;
  constexpr int64_t half = kPanel / 2;
  const int64_t within = column % kPanel, index = column / kPanel * half + within % half;
  if (index >= n / 2) return -1;
  return within < half ? index : n / 2 + index;
}

int64_t padded_columns(int64_t n, bool interleaved) {
  return interleaved ? round_up(n / 2, kPanel / 2) * 2 : round_up(n, kPanel);
}

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
