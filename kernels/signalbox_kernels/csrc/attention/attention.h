// Attention of a few queries of one sequence, with all heads that share a K and V head, over blocks.
//
// K lies as units along the head, V as units along the tokens, so both products run over columns and
// need no horizontal sums. A unit is a word, or the byte that a code is. Keys come in chunks of 256 from position 0; after each chunk the running
// softmax is corrected (Milakov and Gimelshein, 2018). The order of all sums depends on positions
// alone, not on how a prompt was cut into steps. No block before that of a window's first token is read:
// it may be another sequence's, or hold NaN. What a chunk leaves out there would add zeros.
//
// Latents (latents.h) are rows that K and V share, which several tiles of a task read.
#pragma once

#include <algorithm>
#include <cmath>

#include "attention/codes.h"
#include "matmul/product.h"
#include "program/step.h"

namespace SB_NS {

using sb::kKeyChunk;

// A: elements of queries and results. E: products with K and V, and their elements in the cache.
template <class A, class E>
struct Attend {
  typedef typename E::scalar scalar;
  typedef typename E::unit unit;
  typedef typename E::Factors Factors;
  typedef typename Factors::scalar factor_scalar;

  // The places of a task's keys in the cache.
  struct Keys {
    const char* heads;  // this layer's and head's K in block 0
    const int32_t* table;
    int64_t start, end;  // tokens: the first that are read, and behind the last

    Keys(const sb::Phase& p, int32_t tile) {
      const SbShape& shape = *p.shape;
      const int32_t tiles = shape.num_heads / p.heads_of_tile;
      const sb::AttendTask& task = p.tasks[tile / tiles];
      const int64_t head = E::kIsLatent ? 0 : tile % tiles;
      const int64_t first = p.batch->positions[task.first], window = p.op->window;
      heads = p.pool + p.place + head * head_bytes<E>(shape);
      const SbAttention& attention = p.batch->attention;
      const int64_t of_group = static_cast<int64_t>(p.op->cache_group) * attention.num_seqs;
      table = attention.block_tables + (of_group + task.seq) * attention.table_stride;
      const int64_t unit = std::min<int64_t>(shape.block_size, kKeyChunk);
      start = window && first >= window ? (first - window + 1) / unit * unit : 0;
      end = first + task.count;
      if (!p.op->mode) return;
      const int64_t length = attention.context_lens[task.seq];
      end = window ? std::min(end + window - 1, length) : length;
    }

    const unit* keys(const sb::Phase& p, int64_t token) const {
      const int64_t size = p.shape->block_size, step = E::kIsLatent ? p.shape->head_size : 1;
      return reinterpret_cast<const unit*>(heads + table[token / size] * p.block_bytes) +
             token % size * step;
    }

    const unit* values(const sb::Phase& p, int64_t token) const {
      if constexpr (E::kIsLatent) return keys(p, token) + p.shape->head_size - p.shape->value_size;
      const int64_t size = p.shape->head_size, offset = token % p.shape->block_size;
      return keys(p, token - offset) + size / E::G * p.shape->block_size + offset / E::G * size;
    }
  };
  static constexpr int chunk_words = kKeyChunk / Factors::G;
  static constexpr int64_t kFetchedTokens = 512;  // of one head: they stay in L2
  static constexpr int kLineWords = 16;  // of a cache line: keys of as many tokens
  static constexpr int kStepsOfLine = 4 / sizeof(unit);  // along the sum, of 16 tokens
  static constexpr bool has_token_scales = E::kScales == CacheScales::kOfTokens;

  const sb::Phase& phase;
  const SbShape& shape;
  const sb::AttendTask& task;
  int group;  // heads that share K and V
  int head;   // of K and V, or of as many latents
  int rows;   // task.count * group; row r is query r / group, head r % group
  int stored;  // rows that there is memory for
  int size, block_size;
  int width;  // of V
  int query_words;
  int64_t first_position;
  Keys lie;
  Keys next;  // the thread's next task's, most likely
  word* query;        // [rows, query_words] of factors
  float* scores;      // [rows, kKeyChunk]
  word* weights;      // [rows, chunk_words] of factors
  float* out;         // [rows, width]
  float *top, *total, *factor;  // [rows]
  float *k_scales, *v_scales;   // [kKeyChunk], of a chunk's tokens
  float score_scale, value_scale;

  Attend(const sb::Phase& p, int32_t tile, char* scratch)
      : phase(p),
        shape(*p.shape),
        task(p.tasks[tile / (p.shape->num_heads / p.heads_of_tile)]),
        group(p.heads_of_tile),
        head(tile % (shape.num_heads / group)),
        rows(task.count * group),
        stored(static_cast<int>(sb::round_up(rows, 16))),
        size(shape.head_size),
        block_size(shape.block_size),
        width(E::kIsLatent ? shape.value_size : size),
        query_words(size / Factors::G),
        first_position(p.batch->positions[task.first]),
        lie(p, tile),
        next(p, tile + 1 < p.tiles ? tile + 1 : tile) {
    if (tile + 1 == p.tiles) next.end = 0;
    out = reinterpret_cast<float*>(scratch);
    scores = out + stored * width;
    top = scores + stored * kKeyChunk;
    total = top + stored;
    factor = total + stored;
    weights = reinterpret_cast<word*>(factor + stored);
    query = weights + stored * chunk_words;
    k_scales = reinterpret_cast<float*>(query + stored * query_words);
    v_scales = k_scales + kKeyChunk;
    score_scale = shape.scale;
    value_scale = 1.0f;
    if constexpr (E::kScales == CacheScales::kOfLayers) {
      score_scale *= p.op->k_scale * E::kUnit;
      value_scale = p.op->v_scale * E::kUnit;
    }
    begin();
  }

  // Prefetches all lines of the first keys, since no earlier read leads to their block.
  void fetch_first(int64_t end) const {
    if (rows > 4) return;
    const int64_t bytes = static_cast<int64_t>(sizeof(scalar)) * size * W;
    const int64_t soon = lie.start + 4 * W;
    for (int64_t token = lie.start; token < soon && token < end; token += W) {
      const char* block = reinterpret_cast<const char*>(keys(token));
      for (int64_t i = 0; i < bytes; i += 64) prefetch(block + i);
    }
  }

  void begin() {
    fetch_first(lie.end);
    for (int r = 0; r < rows; ++r) {
      const auto* q = static_cast<const typename A::scalar*>(phase.src.data) +
                      (task.first + r / group) * phase.src.stride +
                      (head * group + r % group) * size;
      auto* to = reinterpret_cast<factor_scalar*>(query + r * query_words);
      for (int d = 0; d < size; d += W) Factors::store(to + d, A::load(q + d));
      // A sink is one more score, of a token without a value.
      top[r] = phase.op->bias ? phase.op->bias[head * group + r % group] : -INFINITY;
      total[r] = top[r] == -INFINITY ? 0.0f : 1.0f;
    }
    std::memset(out, 0, sizeof(float) * static_cast<size_t>(rows * width));
  }

  const unit* keys(int64_t token) const { return lie.keys(phase, token); }
  const unit* values(int64_t token) const { return lie.values(phase, token); }

  // Returns the memory to fetch to L2 while the 16 tokens from `token` on are computed: 16 tokens
  // that the thread reads some time later, perhaps those of its next task.
  struct Ahead {
    const unit* keys = nullptr;
    const unit* values = nullptr;
  };

  Ahead ahead(int64_t token) const {
    if (task.count > 1) return {};
    const int64_t length = sb::round_up(lie.end - lie.start, W);
    token += length < kFetchedTokens ? length : kFetchedTokens;
    const bool is_here = token < lie.end;
    if (!is_here) token += next.start - lie.start - length;
    const Keys& where = is_here ? lie : next;
    if (token < where.start || token >= where.end) return {};
    return {where.keys(phase, token), where.values(phase, token)};
  }

  // Scores of NV vectors of keys from `token` for all rows; fetch(k) fetches meanwhile, at step k.
  template <int R, int NV, class Fetch>
  void score(int64_t token, float* c, Fetch&& fetch) const {
    Columns<NV, E> columns;
    columns.step = block_size;
    for (int v = 0; v < NV; ++v) columns.start[v] = keys(token + v * W);
    const int depth = size / E::G;
    int r = 0;
    for (; r + R <= rows; r += R)
      multiply<E, R, NV>(query + r * query_words, query_words, columns, depth, c + r * kKeyChunk,
                         kKeyChunk, fetch);
    if (r < rows)
      with_rows<R>(rows - r, [&](auto count) SB_LAMBDA {
        multiply<E, decltype(count)::value, NV>(query + r * query_words, query_words, columns,
                                                depth, c + r * kKeyChunk, kKeyChunk, fetch);
      });
  }

#if defined(__AVX2__)
  static constexpr int kFewVectors = W == 16 ? 4 : 2;

  // For few rows memory is the limit: fetches V of these keys and K of the next ones to L1, and what
  // is farther ahead to L2.
  void score_few(int64_t token, int64_t end, float* c) const {
    constexpr int tokens = kFewVectors * W, groups = tokens / kLineWords;
    const unit* value[groups];
    const unit* near[groups];
    Ahead far[groups];
    for (int i = 0; i < groups; ++i) {
      const int64_t at = token + i * kLineWords, after = at + tokens;
      value[i] = values(at);
      near[i] = keys(after < end ? after : at);
      far[i] = ahead(at);
      if (!far[i].keys) far[i] = {near[i], value[i]};
    }
    score<4, kFewVectors>(token, c, [=, this](int64_t k) SB_LAMBDA {
      if (k % kStepsOfLine) return;
#pragma GCC unroll 8
      for (int i = 0; i < groups; ++i) {
        prefetch(value[i] + k * kLineWords);
        prefetch(near[i] + k * block_size);
        prefetch_l2(far[i].keys + k * block_size);
        prefetch_l2(far[i].values + k * kLineWords);
      }
    });
  }
#endif

  void score_chunk(int64_t first, int count, int64_t end) const {
    int t = 0;
#if defined(__AVX2__)
    if (rows <= 4)
      for (; t + kFewVectors * W <= count; t += kFewVectors * W) score_few(first + t, end, scores + t);
#else
    (void)end;
#endif
#if defined(__AVX512F__)
    for (; t + 2 * W <= count; t += 2 * W) score<12, 2>(first + t, scores + t, NothingAhead{});
    for (; t < count; t += W) score<12, 1>(first + t, scores + t, NothingAhead{});
#else
    for (; t + 2 * W <= count; t += 2 * W) score<4, 2>(first + t, scores + t, NothingAhead{});
    for (; t < count; t += W) score<4, 1>(first + t, scores + t, NothingAhead{});
#endif
  }

  // Copies the scales of a chunk's tokens, with zeros behind them: the cache may hold NaN there.
  void copy_scales(int64_t first, int count, int padded) {
    for (int t = 0; t < count; t += block_size) {
      const int64_t offset = (first + t) % block_size;
      const auto bytes = sizeof(float) * static_cast<size_t>(std::min(count - t, block_size));
      const float* scales = token_scales<E>(keys(first + t - offset), shape) + offset;
      std::memcpy(k_scales + t, scales, bytes);
      std::memcpy(v_scales + t, scales + block_size, bytes);
    }
    for (int t = count; t < padded; ++t) k_scales[t] = v_scales[t] = 0.0f;
  }

  // Excludes the keys outside [low, high) from a row of scores.
  void hide(float* s, int low, int high, int count) const {
    VI lanes;
    for (int i = 0; i < W; ++i) lanes[i] = i;
    for (int t = 0; t < count; t += W) {
      const VI at = lanes + t;
      store(s + t, select((at >= low) & (at < high), load(s + t), splat(-INFINITY)));
    }
  }

  static constexpr bool is_rough = Factors::G == 2;  // weights become bfloat16

  SB_INLINE V power(V x) {
    if constexpr (is_rough) return exp2_roughly(x);
    return exp(x);
  }

  // Returns what a row's scores of the keys from `token` on have added; null is nothing.
  const float* biases(int r, int64_t token) const {
    const auto* table = static_cast<const float*>(phase.op->weight);
    if (!table) return nullptr;
    const int64_t most = phase.op->n - 1, stride = 2 * most + sb::kPanel;
    const int64_t apart = token - (first_position + r / group);
    return table + (head * group + r % group) * stride + most + apart;
  }

  // Turns the scores of one row into weights; keys [low, high) of the chunk are visible, `count` are
  // written. `by_place` is as `biases` returns it.
  void soften(int r, int low, int high, int count, const float* by_place) {
    float* s = scores + r * kKeyChunk;
    auto* p = reinterpret_cast<factor_scalar*>(weights + r * chunk_words);
    constexpr float log2_e = 1.44269504088896341f;
    const float cap = phase.op->cap, factor_of_score = cap > 0.0f || by_place ? 1.0f : score_scale;
    const float factor_of_power = is_rough ? factor_of_score * log2_e : factor_of_score;
    const V scale = splat(factor_of_power), none = splat(-INFINITY);
    V best = none;
    if constexpr (has_token_scales)
      for (int t = 0; t < count; t += W) store(s + t, load(s + t) * load(k_scales + t));
    if (cap > 0.0f)
      for (int t = 0; t < count; t += W) store(s + t, capped(load(s + t) * score_scale, cap));
    if (by_place)
      for (int t = 0; t < count; t += W) store(s + t, load(s + t) * score_scale + load(by_place + t));
    if (low > 0 || high < count) hide(s, low, high, count);
    for (int t = 0; t < count; t += W) best = larger(best, load(s + t));
    const float chunk_top = largest(best) * factor_of_score;
    const float old = top[r];
    const float now = old > chunk_top ? old : chunk_top;
    const V shift = splat(now == -INFINITY ? 0.0f : is_rough ? now * log2_e : now);
    V added{};
    for (int t = 0; t < count; t += W) {
      const V weight = power(fused(load(s + t), scale, -shift));
      added += weight;
      if constexpr (has_token_scales)
        Factors::store(p + t, weight * load(v_scales + t));
      else
        Factors::store(p + t, weight);
    }
    factor[r] = old == -INFINITY ? 0.0f : std::exp(old - now);
    total[r] = total[r] * factor[r] + sum(added);
    top[r] = now;
  }

  // out[R, NV vectors] = out * factor + weights times V of keys [first, first + count).
  template <int R, int NV>
  void gather(int r0, int d, int64_t first, int count) {
    V acc[R][NV];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v)
        acc[r][v] = load(out + (r0 + r) * width + d + v * W) * splat(factor[r0 + r]);
    const word* p = weights + r0 * chunk_words;
    for (int t = 0; t < count; t += block_size) {
      const unit* block = values(first + t) + d;
      const int pairs = ((count - t < block_size ? count - t : block_size) + E::G - 1) / E::G;
      for (int k = 0; k < pairs; ++k, p += E::kLeftWords) {
        typename E::Right right[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) right[v] = E::right(block + k * size + v * W);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const typename E::Left left = E::broadcast(p + r * chunk_words);
#pragma GCC unroll 8
          for (int v = 0; v < NV; ++v) acc[r][v] = E::mac(acc[r][v], left, right[v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) store(out + (r0 + r) * width + d + v * W, acc[r][v]);
  }

  template <int NV>
  void gather_columns(int d, int64_t first, int count) {
#if defined(__AVX512F__)
    constexpr int most = 6;
#else
    constexpr int most = 3;
#endif
    for (int r = 0; r < rows; r += most)
      with_rows<most>(rows - r < most ? rows - r : most, [&](auto n) SB_LAMBDA {
        gather<decltype(n)::value, NV>(r, d, first, count);
      });
  }

  void gather_chunk(int64_t first, int count) {
    constexpr int wide = W == 16 ? 4 / E::kLeftWords : 2;  // the sums stay in registers
    int d = 0;
    for (; d + wide * W <= width; d += wide * W) gather_columns<wide>(d, first, count);
    for (; d < width; d += W) gather_columns<1>(d, first, count);
  }

  // Goes over the keys; `products` scores a chunk of them and gathers their values.
  template <class Products>
  void run(Products& products) {
    const int64_t end = lie.end, window = phase.op->window;
    const bool sees_later = phase.op->mode;
    for (int64_t chunk = lie.start, next_chunk; chunk < end; chunk = next_chunk) {
      next_chunk = chunk / kKeyChunk * kKeyChunk + kKeyChunk;
      const int count = static_cast<int>(std::min(end, next_chunk) - chunk);
      const int padded = (count + W - 1) / W * W;
      products.score_chunk(chunk, count, end);
      if constexpr (has_token_scales) copy_scales(chunk, count, padded);
      for (int r = 0; r < rows; ++r) {
        const int64_t position = first_position + r / group - chunk;
        const int64_t low = window ? position - window + 1 : 0;
        const int64_t high = !sees_later ? position + 1 : window ? position + window : count;
        soften(r, static_cast<int>(low > 0 ? low : 0), static_cast<int>(std::min<int64_t>(high, count)),
               padded, biases(r, chunk));
      }
      products.gather_chunk(chunk, count);
    }
    finish();
  }

  void finish() const {
    for (int r = 0; r < rows; ++r) {
      auto* to = static_cast<typename A::scalar*>(phase.dst.data) +
                 (task.first + r / group) * phase.dst.stride + (head * group + r % group) * width;
      const V share = splat(1.0f / total[r] * value_scale);
      for (int d = 0; d < width; d += W) A::store(to + d, load(out + r * width + d) * share);
    }
  }
};

}  // namespace SB_NS
