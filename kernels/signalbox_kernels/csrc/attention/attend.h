// Attention with the products of this instruction set: in matrix registers where there are some.
#pragma once

#include "attention/attention.h"
#include "attention/rows.h"
#include "isa/tiles.h"

namespace SB_NS {

#if defined(__AMX_BF16__)
struct TiledAttend : Attend<Bf16, Bf16> {
  static constexpr int half = kTileWords / 2;  // words of 16 tokens

  word* last;  // [half, size]: values of the last tokens, with zeros behind them

  TiledAttend(const sb::Phase& p, int32_t tile, char* scratch)
      : Attend(p, tile, scratch),
        last(query + stored * query_words) {
    use_tiles(attention_config(rows < kTileRows ? rows : kTileRows));
  }

  // For one query memory is the limit: fetches V of these keys, and K of the next ones.
  void fetch(int64_t token, int64_t end) const {
    const word* value = values(token);
    const word* near = keys(token + 4 * W < end ? token + 4 * W : token);
    for (int k = 0; k < size / Bf16::G; ++k) {
      prefetch(value + k * W);
      prefetch(near + k * block_size);
    }
  }

  // c[16, 16 N]: scores of N times 16 keys from `token`.
  template <int N>
  void score(int64_t token, int r, float* c) const {
    const int depth = size / Bf16::G;
    const int64_t key_bytes = 4 * block_size, query_bytes = 4 * depth;
    const word* key[N];
    const word* far[N];
    for (int i = 0; i < N; ++i) key[i] = keys(token + i * W);
    for (int i = 0; i < N; ++i) far[i] = ahead(token + i * W).keys;
    each_tile<N>([](auto sum) SB_LAMBDA { tile_zero<decltype(sum)::value>(); });
    const word* left = query + r * depth;
    int k = 0;
    for (; k + kTileWords <= depth; k += kTileWords) {
      tile_load<4>(left + k, query_bytes);
      each_tile<N>([&](auto sum) SB_LAMBDA {
        constexpr int i = decltype(sum)::value;
        tile_load<5>(key[i] + k * block_size, key_bytes);
        tile_multiply<i, 4, 5>();
        if (!far[i]) return;
#pragma GCC unroll 1
        for (int line = k; line < k + kTileWords; ++line) prefetch_l2(far[i] + line * block_size);
      });
    }
    if (k < depth) {
      tile_load<6>(left + k, query_bytes);
      each_tile<N>([&](auto sum) SB_LAMBDA {
        constexpr int i = decltype(sum)::value;
        tile_load<7>(key[i] + k * block_size, key_bytes);
        tile_multiply<i, 6, 7>();
      });
    }
    each_tile<N>([&](auto sum) SB_LAMBDA {
      constexpr int i = decltype(sum)::value;
      tile_store<i>(c + i * W, 4 * kKeyChunk);
    });
  }

  void score_chunk(int64_t first, int count, int64_t end) const {
    for (int t = 0; t < count; t += 4 * W) {
      const int groups = (count - t + W - 1) / W;
      if (task.count == 1)
        for (int i = 0; i < 4 && i < groups; ++i) fetch(first + t + i * W, end);
      for (int r = 0; r < rows; r += kTileRows)
        with_rows<4>(groups < 4 ? groups : 4, [&](auto n) SB_LAMBDA {
          score<decltype(n)::value>(first + t, r, scores + r * kKeyChunk + t);
        });
    }
  }

  // out[16, 16 N] of columns from `d` on += weights times V of keys [first, first + count).
  template <int N>
  void gather(int r, int d, int64_t first, int count) const {
    float* c = out + r * size + d;
    const int64_t row_bytes = 4 * size;
    each_tile<N>([&](auto sum) SB_LAMBDA {
      constexpr int i = decltype(sum)::value;
      tile_load<i>(c + i * W, row_bytes);
    });
    for (int t = 0; t < count; t += W) {
      const word* value = (count - t < W ? last : values(first + t)) + d;
      const word* far = ahead(first + t).values;
      tile_load<6>(weights + r * chunk_words + t / Bf16::G, 4 * chunk_words);
      each_tile<N>([&](auto sum) SB_LAMBDA {
        constexpr int i = decltype(sum)::value;
        tile_load<7>(value + i * W, row_bytes);
        tile_multiply<i, 6, 7>();
        if (!far) return;
#pragma GCC unroll 1
        for (int k = 0; k < half; ++k) prefetch_l2(far + k * size + d + i * W);
      });
    }
    each_tile<N>([&](auto sum) SB_LAMBDA {
      constexpr int i = decltype(sum)::value;
      tile_store<i>(c + i * W, row_bytes);
    });
  }

  void gather_chunk(int64_t first, int count) const {
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < size; d += W)
        store(out + r * size + d, load(out + r * size + d) * splat(factor[r]));
    if (count % W) keep_last(first + count / W * W, count % W);
    for (int r = 0; r < rows; r += kTileRows)
      for (int d = 0; d < size; d += 4 * W)
        with_rows<4>(size - d < 4 * W ? (size - d) / W : 4, [&](auto n) SB_LAMBDA {
          gather<decltype(n)::value>(r, d, first, count);
        });
  }

  // Copies the last values with zeros behind them: the cache may hold NaN there, and 0 times NaN
  // is NaN.
  void keep_last(int64_t token, int count) const {
    const int words = (count + 1) / Bf16::G * size;
    std::memcpy(last, values(token), 4 * static_cast<size_t>(words));
    std::memset(last + words, 0, 4 * static_cast<size_t>(half * size - words));
  }
};
#endif

template <class A, class E>
static void attend_tile(const sb::Phase& phase, const sb::Claim& claim) {
  if (phase.rotation) {
    const int head = claim.tile % phase.shape->num_kv_heads;
    const int64_t row = phase.tasks[claim.tile / phase.shape->num_kv_heads].first;
    rotate_group<A, E>(*phase.rotation, row, head);
    put_value_of<E>(*phase.rotation, row, head);
  }
#if defined(__AMX_BF16__)
  if constexpr (E::Factors::G == 2) {
    TiledAttend attend(phase, claim.tile, claim.scratch);
    return attend.run(attend);
  }
#endif
  Attend<A, E> attend(phase, claim.tile, claim.scratch);
  attend.run(attend);
}

}  // namespace SB_NS
