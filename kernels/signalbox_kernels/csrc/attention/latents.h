// Attention to latents (DeepSeek-V2, 2024): one vector of a token is the K of all heads, and ends with their V.
//
// Scores sum within vectors, since K lies as rows; each is one chain, whatever the rows and tokens beside it.
#pragma once

#include "attention/attention.h"

namespace SB_NS {

template <class A, class E>
struct LatentAttend : Attend<A, E> {
  static constexpr int kTokens = W == 16 ? 4 : 2;  // at once, with four rows: the sums stay in registers

  using Attend<A, E>::Attend;

  // c[R, T]: scores of T keys from `token` on for rows from r on.
  template <int R, int T>
  void score(int r, int64_t token, float* c) const {
    const word* left = this->query + r * this->query_words;
    const typename E::unit* right[T];
    for (int t = 0; t < T; ++t) right[t] = this->keys(token + t);
    V sums[R][T] = {};
    for (int d = 0; d < this->size; d += W) {
      V key[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) key[t] = E::right(right[t] + d);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const V query = F32::right(left + i * this->query_words + d);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) sums[i][t] = fused(query, key[t], sums[i][t]);
      }
    }
    for (int i = 0; i < R; ++i)
      for (int t = 0; t < T; ++t) c[i * kKeyChunk + t] = sum(sums[i][t]);
  }

  void score_chunk(int64_t first, int count, int64_t) const {
    for (int t = 0; t < count; t += kTokens)
      with_rows<kTokens>(count - t < kTokens ? count - t : kTokens, [&](auto tokens) SB_LAMBDA {
        for (int r = 0; r < this->rows; r += 4)
          with_rows<4>(this->rows - r < 4 ? this->rows - r : 4, [&](auto n) SB_LAMBDA {
            score<decltype(n)::value, decltype(tokens)::value>(r, first + t, this->scores + r * kKeyChunk + t);
          });
      });
  }
};

template <class A, class E>
static void attend_to_latents(const sb::Phase& phase, const sb::Claim& claim) {
  LatentAttend<A, E> attend(phase, claim.tile, claim.scratch);
  attend.run(attend);
}

}  // namespace SB_NS
