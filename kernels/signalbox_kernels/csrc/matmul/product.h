// The one inner loop of all products: rows of words against columns of words.
#pragma once

#include "isa/elements.h"

namespace SB_NS {

// Columns of the right side: NV vectors, each with its own start and all with one step along the sum.
template <int NV, class E>
struct Columns {
  const typename E::unit* start[NV];
  int64_t step;  // units
};

// c[R, NV * W] = a[R, depth] b[depth, NV * W], or += if Adds; depth in units of b. Every element is summed in the order
// of depth by one accumulator, so a row's result does not depend on the rows beside it. ahead(k)
// fetches what comes after, while step k computes.
template <class E, int R, int NV, bool Adds = false, class Ahead>
SB_INLINE void multiply(const word* a, int64_t a_stride, Columns<NV, E> b,
                        int64_t depth, float* c, int64_t c_stride, Ahead&& ahead) {
  V sum[R][NV];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) sum[r][v] = Adds ? load(c + r * c_stride + v * W) : V{};
  for (int64_t k = 0; k < depth; ++k) {
    typename E::Right right[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) right[v] = E::right(b.start[v] + k * b.step);
    ahead(k);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename E::Left left = E::broadcast(a + r * a_stride + k * E::kLeftWords);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) sum[r][v] = E::mac(sum[r][v], left, right[v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store(c + r * c_stride + v * W, sum[r][v]);
}

struct NothingAhead {
  __attribute__((always_inline)) void operator()(int64_t) const {}
};

template <int N>
struct Rows {
  static constexpr int value = N;
};

// Calls f with Rows<rows>, for rows in 1..N.
template <int N, class F>
SB_INLINE void with_rows(int rows, F&& f) {
  if constexpr (N > 1) {
    if (rows < N) return with_rows<N - 1>(rows, static_cast<F&&>(f));
  }
  f(Rows<N>{});
}

}  // namespace SB_NS
