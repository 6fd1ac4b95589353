// Operations on single tokens: embedding, RMSNorm, rotation with the write to the cache, and sums over ranks.
#pragma once

#include <cmath>

#include "attention/codes.h"
#include "matmul/coding.h"
#include "matmul/rounding.h"
#include "matmul/values.h"
#include "program/step.h"

namespace SB_NS {

struct Range {
  int64_t first, end;
};

SB_INLINE Range rows_of_tile(const sb::Phase& phase, int32_t tile) {
  const int64_t first = static_cast<int64_t>(tile) * phase.rows_per_tile;
  const int64_t end = first + phase.rows_per_tile;
  return {first, end < phase.rows ? end : phase.rows};
}

SB_INLINE int64_t index_of(const sb::Phase& phase, int64_t row) {
  const SbBatch& batch = *phase.batch;
  const int32_t index = phase.op->mode & SB_INDEX_MASK;
  if (index == SB_POSITIONS) return batch.positions[row];
  if (index == SB_TOKEN_TYPES) return batch.token_types ? batch.token_types[row] : 0;
  return batch.token_ids[row];
}

inline void embed_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const auto* packed = static_cast<const char*>(phase.op->weight);
  const Range range = rows_of_tile(phase, claim.tile);
  const int64_t width = phase.dst.stride;
  const bool adds = phase.op->mode & SB_ADDED;
  for (int64_t row = range.first; row < range.end; ++row) {
    float* out = static_cast<float*>(phase.dst.data) + row * width;
    const int64_t index = index_of(phase, row) - phase.op->first_token;
    if (index < 0 || index >= phase.op->n) {  // of another rank
      if (!adds) std::memset(out, 0, sizeof(float) * static_cast<size_t>(width));
      continue;
    }
    float* found = adds ? reinterpret_cast<float*>(claim.scratch) : out;
    sb::with_storage(phase.op->storage, [&](auto s) SB_LAMBDA {
      read_row<decltype(s)>(packed, index, width, found);
    });
    const float scale = phase.op->scale;
    if (scale != 1.0f)
      for (int64_t i = 0; i < width; i += W) store(found + i, load(found + i) * scale);
    if (adds)
      for (int64_t i = 0; i < width; i += W) store(out + i, load(out + i) + load(found + i));
  }
}

// Sums in the order of the ranks: all of them get the same bits.
template <bool Add>
static void sum_rows(const sb::Phase& phase, const Range& range) {
  const int64_t stride = phase.src.stride;
  for (int64_t row = range.first; row < range.end; ++row) {
    const float* shares = static_cast<const float*>(phase.src.data) + row * stride;
    float* out = static_cast<float*>(phase.dst.data) + row * phase.dst.stride;
    for (int64_t i = 0; i < stride; i += W) {
      V x = load(shares + i);
      for (int32_t rank = 1; rank < phase.num_shares; ++rank)
        x += load(shares + rank * phase.share_floats + i);
      store(out + i, Add ? load(out + i) + x : x);
    }
  }
}

inline void sum_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const Range range = rows_of_tile(phase, claim.tile);
  phase.op->mode == SB_ADD ? sum_rows<true>(phase, range) : sum_rows<false>(phase, range);
}

// Copies each token's row to the rows of its experts.
template <class E>
static void gather_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const int64_t size = phase.src_code_bytes ? 1 : sizeof(typename E::scalar);
  const int64_t bytes = phase.src.stride * size;
  const Range range = rows_of_tile(phase, claim.tile);
  const auto* from = static_cast<const char*>(phase.src.data);
  char* to = static_cast<char*>(phase.dst.data);
  for (int64_t row = range.first; row < range.end; ++row)
    std::memcpy(to + row * bytes, from + phase.routed.tokens[row] * bytes, static_cast<size_t>(bytes));
}

inline void mix_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const sb::Routed& routed = phase.routed;
  const Range range = rows_of_tile(phase, claim.tile);
  const int64_t width = phase.dst.stride;
  const bool adds = phase.op->mode & SB_MIX_ADDED, has_common = phase.op->mode & SB_MIX_COMMON;
  for (int64_t token = range.first; token < range.end; ++token) {
    const int32_t* rows = routed.rows + token * routed.num_chosen;
    const float* shares = routed.shares + token * routed.num_shares;
    const auto* common = static_cast<const float*>(phase.gate.data) + token * width;
    float* out = static_cast<float*>(phase.dst.data) + token * width;
    for (int64_t i = 0; i < width; i += W) {
      const auto* x = static_cast<const float*>(phase.src.data) + i;
      V sum{};
      for (int32_t j = 0; j < routed.num_chosen; ++j)
        sum = fused(splat(shares[j]), load(x + rows[j] * width), sum);
      if (has_common) sum = fused(splat(shares[routed.num_chosen]), load(common + i), sum);
      store(out + i, adds ? load(out + i) + sum : sum);
    }
  }
}

// Writes the codes of a row.
template <class G, class F>
SB_INLINE void put_groups(G* out, int64_t padded, F&& x) {
  for (int64_t i = 0; i < padded; i += kGroup, ++out) {
    V group[kGroupVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) group[v] = x(i + v * W);
    code_group(group, out);
  }
}

// Writes a row's elements, or its codes, of the vectors that x(i) gives.
template <class E, class F>
SB_INLINE void put_row(const sb::Phase& phase, int64_t row, int64_t padded, F&& x) {
  if (phase.op->rounding) return put_rounded<E>(phase, row, padded, x);
  if (!phase.dst_code_bytes) {
    auto* out = static_cast<typename E::scalar*>(phase.dst.data) + row * phase.dst.stride;
    for (int64_t i = 0; i < padded; i += W) E::store(out + i, x(i));
    return;
  }
  char* out = static_cast<char*>(phase.dst.data) + row * phase.dst.stride;
  if (phase.dst_code_bytes == 2) return put_groups(reinterpret_cast<WideGroup*>(out), padded, x);
  put_groups(reinterpret_cast<CodedGroup*>(out), padded, x);
}

// Args: S: element of src.
template <class E, class S>
static void code_rows(const sb::Phase& phase, const Range& range) {
  const auto* order = static_cast<const int32_t*>(phase.op->weight);
  for (int64_t row = range.first; row < range.end; ++row) {
    const auto* x = static_cast<const typename S::scalar*>(phase.src.data) + row * phase.src.stride;
    if (order)
      put_row<E>(phase, row, phase.src.stride, [=](int64_t i) SB_LAMBDA {
        typename S::scalar chosen[W];
        for (int lane = 0; lane < W; ++lane) chosen[lane] = x[order[i + lane]];
        return S::load(chosen);
      });
    else
      put_row<E>(phase, row, phase.src.stride, [=](int64_t i) SB_LAMBDA { return S::load(x + i); });
  }
}

// The padding, behind n columns, stays zero.
template <class E>
static void gate_rows(const sb::Phase& phase, const Range& range) {
  const int64_t width = phase.op->n;
  for (int64_t row = range.first; row < range.end; ++row) {
    const auto* x = static_cast<const typename E::scalar*>(phase.src.data) + row * phase.src.stride;
    const float* gate = static_cast<const float*>(phase.gate.data) + row * phase.gate.stride + phase.op->column;
    put_row<E>(phase, row, phase.src.stride, [=](int64_t i) SB_LAMBDA {
      return i < width ? gated(E::load(x + i), load(gate + i)) : V{};
    });
  }
}

template <class E>
static void code_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const Range range = rows_of_tile(phase, claim.tile);
  if (phase.op->mode == 2) return gate_rows<E>(phase, range);
  phase.op->mode ? code_rows<E, F32>(phase, range) : code_rows<E, E>(phase, range);
}

template <class E>
static void rms_norm_row(const sb::Phase& phase, int64_t row, const float* x) {
  const auto* weight = static_cast<const float*>(phase.op->weight);
  const int64_t padded = phase.src.stride, size = phase.op->n ? phase.op->n : phase.shape->hidden_size;
  V squares{};
  for (int64_t i = 0; i < padded; i += W) squares = fused(load(x + i), load(x + i), squares);
  const float mean = sum(squares) / static_cast<float>(size);
  const bool is_normed = !(phase.op->mode & SB_UNNORMED);
  const V factor = splat(is_normed ? 1.0f / std::sqrt(mean + phase.op->eps) : 1.0f);
  const float* before = nullptr;
  if (phase.op->mode & SB_TO_SUM)
    before = static_cast<const float*>(phase.dst.data) + row * phase.dst.stride;
  const float scale = phase.op->scale;
  put_row<E>(phase, row, padded, [=](int64_t i) SB_LAMBDA {
    const V normed = load(x + i) * factor * load(weight + i);
    return before ? (load(before + i) + normed) * scale : normed;
  });
}

// The padding, which is zero, stays so, because that of weight and bias is.
template <class E>
static void layer_norm_row(const sb::Phase& phase, int64_t row, const float* x) {
  const auto* weight = static_cast<const float*>(phase.op->weight);
  const float* bias = phase.op->bias;
  const int64_t padded = phase.src.stride, size = phase.shape->hidden_size;
  V total{};
  for (int64_t i = 0; i < padded; i += W) total += load(x + i);
  const float mean = sum(total) / static_cast<float>(size);
  V squares{};
  for (int64_t i = 0; i < padded; i += W) {
    const V centred = load(x + i) - mean;
    squares = fused(centred, centred, squares);
  }
  const float of_padding = static_cast<float>(padded - size) * mean * mean;
  const float variance = (sum(squares) - of_padding) / static_cast<float>(size);
  const V factor = splat(1.0f / std::sqrt(variance + phase.op->eps));
  put_row<E>(phase, row, padded, [=](int64_t i) SB_LAMBDA {
    const V normed = (load(x + i) - mean) * factor * load(weight + i);
    return bias ? normed + load(bias + i) : normed;
  });
}

// Norms runs of some columns of float32, a multiple of 16.
static inline void norm_columns(const sb::Phase& phase, int64_t row) {
  const SbOp& op = *phase.op;
  const auto* weight = static_cast<const float*>(op.weight);
  const float* x = static_cast<const float*>(phase.src.data) + row * phase.src.stride + op.column;
  float* out = static_cast<float*>(phase.dst.data) + row * phase.dst.stride + op.column;
  for (int32_t run = 0; run < op.group; ++run, x += op.n, out += op.n) {
    V squares{};
    for (int64_t i = 0; i < op.n; i += W) squares = fused(load(x + i), load(x + i), squares);
    const V factor = splat(1.0f / std::sqrt(sum(squares) / static_cast<float>(op.n) + op.eps));
    for (int64_t i = 0; i < op.n; i += W) {
      const V normed = load(x + i) * factor * load(weight + i);
      store(out + i, op.mode & SB_TO_SUM ? (load(out + i) + normed) * op.scale : normed);
    }
  }
}

template <class E>
SB_INLINE void norm_row(const sb::Phase& phase, int64_t row, const float* x) {
  phase.op->mode & SB_CENTRED ? layer_norm_row<E>(phase, row, x) : rms_norm_row<E>(phase, row, x);
}

template <class E>
static void norm_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row) {
    if (phase.op->n && (phase.op->src == phase.op->dst || phase.op->mode & SB_TO_FLOATS)) {
      norm_columns(phase, row);
      continue;
    }
    const int64_t token = phase.op->mode & SB_OF_ROWS ? phase.batch->row_tokens[row] : row;
    const float* x = static_cast<const float*>(phase.src.data) + token * phase.src.stride;
    phase.op->mode & SB_TO_FLOATS ? norm_row<F32>(phase, row, x) : norm_row<E>(phase, row, x);
  }
}

SB_INLINE void norm_head(float* head, const float* weight, int size, float eps) {
  float squares = 0.0f;
  for (int i = 0; i < size; ++i) squares += head[i] * head[i];
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
  for (int i = 0; i < size; ++i) head[i] = head[i] * factor * (weight ? weight[i] : 1.0f);
}

// Rotates the pairs (2 i, 2 i + 1) of a head's first elements.
SB_INLINE void rotate_neighbours(float* head, const float* cosines, int size) {
  const float* sines = cosines + size / 2;
  for (int i = 0; i < size / 2; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * cosines[i] - y * sines[i];
    head[2 * i + 1] = y * cosines[i] + x * sines[i];
  }
}

// Rotates the pairs (i, i + size / 2) of them.
SB_INLINE void rotate_halves(float* head, const float* cosines, int size) {
  const int half = size / 2;
  const float* sines = cosines + half;
  int i = 0;
  for (; i + W <= half; i += W) {
    const V x = load(head + i), y = load(head + i + half);
    store(head + i, x * load(cosines + i) - y * load(sines + i));
    store(head + i + half, y * load(cosines + i) + x * load(sines + i));
  }
  for (; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cosines[i] - y * sines[i];
    head[i + half] = y * cosines[i] + x * sines[i];
  }
}

// The slots of the tokens in the blocks of a layer's group.
inline const int64_t* slots_of(const sb::Phase& phase) {
  return phase.batch->attention.slots + int64_t{phase.op->cache_group} * phase.batch->num_tokens;
}

// The places of a token's K and V in the cache. A layer's K of a block and head is
// [head_size / G, block_size, G], V [block_size / G, head_size, G]; scales of tokens are behind them.
// Latents are [block_size, head_size].
template <class E>
struct CacheSlot {
  typedef typename E::scalar scalar;
  typedef typename E::unit unit;

  const sb::Phase& phase;
  const int64_t slot;
  const int64_t size, block_size, offset;

  CacheSlot(const sb::Phase& p, int64_t token)
      : phase(p),
        slot(slots_of(p)[token]),
        size(p.shape->head_size),
        block_size(p.shape->block_size),
        offset(slot % block_size) {}

  scalar* keys(int head) const {
    char* block = phase.pool + slot / block_size * phase.block_bytes + phase.place;
    return reinterpret_cast<scalar*>(block + head * head_bytes<E>(*phase.shape));
  }

  scalar* values(int head) const {
    return keys(head) + size * block_size + offset / E::G * size * E::G + offset % E::G;
  }

  // Returns what K (side 0) or V (1) is multiplied with before it is stored; stores a token's scale.
  float inverse_scale(int head, int side, const float* values) const {
    if constexpr (E::kScales == CacheScales::kOfTokens) {
      float* scales = token_scales<E>(keys(head), *phase.shape);
      return E::inverse_scale(values, static_cast<int>(size), scales[side * block_size + offset]);
    } else if constexpr (E::kScales == CacheScales::kOfLayers) {
      return 1.0f / (side ? phase.op->v_scale : phase.op->k_scale);
    }
    return 1.0f;
  }

  void put_latent(const float* latent) const {
    scalar* to = keys(0) + offset * size;
    for (int64_t i = 0; i < size; i += W) E::store(to + i, load(latent + i));
  }

  void put_key(int head, const float* key) const {
    if constexpr (E::kIsLatent) return put_latent(key);
    alignas(64) scalar narrow[W];
    const V inverse = splat(inverse_scale(head, 0, key));
    auto* to = reinterpret_cast<unit*>(keys(head)) + offset;
    for (int64_t i = 0; i < size; i += W) {
      E::store(narrow, load(key + i) * inverse);
      for (int j = 0; j < W / E::G; ++j, to += block_size)
        std::memcpy(to, narrow + j * E::G, sizeof *to);
    }
  }

  // Writes V; zeroes the place beside the last token, which may hold NaN: 0 times NaN is NaN.
  void put_value(int head, const float* value, bool is_last) const {
    alignas(64) scalar narrow[W];
    const V inverse = splat(inverse_scale(head, 1, value));
    scalar* to = values(head);
    const bool ends_word = E::G == 2 && offset % 2 == 0 && is_last;
    for (int64_t i = 0; i < size; i += W, to += W * E::G) {
      E::store(narrow, load(value + i) * inverse);
      for (int j = 0; j < W; ++j) to[j * E::G] = narrow[j];
      if (ends_word)
        for (int j = 0; j < W; ++j) to[j * E::G + 1] = 0;
    }
  }

  // Writes V of this token and of the next one, which share their words.
  void put_values(int head, const float* value, const float* next) const {
    alignas(64) scalar low[W], high[W];
    auto* to = reinterpret_cast<word*>(values(head));
    for (int64_t i = 0; i < size; i += W, to += W) {
      E::store(low, load(value + i));
      E::store(high, load(next + i));
      alignas(64) uint32_t both[W];
      for (int j = 0; j < W; ++j)
        both[j] = static_cast<uint32_t>(low[j]) | static_cast<uint32_t>(high[j]) << 16;
      std::memcpy(to, both, sizeof both);
    }
  }
};

// Rotates a token's K of one head and the queries that attend to it; the K goes to the cache.
template <class A, class E>
static void rotate_group(const sb::Phase& phase, int64_t row, int kv_head) {
  const SbShape& shape = *phase.shape;
  const int size = shape.head_size, group = shape.num_heads / shape.num_kv_heads;
  const int rotated = phase.op->n;
  float* heads = static_cast<float*>(phase.src.data) + row * phase.src.stride;
  const auto* own = static_cast<const float*>(phase.op->weight);
  const float* angles = (own ? own : shape.rotary) + phase.batch->positions[row] * rotated;
  const auto turn = [=](float* head, const float* weight) {
    if (weight) norm_head(head, weight, size, phase.op->eps);
    if (phase.op->mode == SB_NEIGHBOURS) return rotate_neighbours(head, angles, rotated);
    rotate_halves(head, angles, rotated);
  };
  float* key = heads + (shape.num_heads + kv_head) * size;
  const int32_t bits = phase.op->keys_and_values;
  if (!(bits & SB_NO_KEYS)) {
    float* value = key + shape.num_kv_heads * size;
    if (bits & SB_VALUES_OF_KEYS) std::memcpy(value, key, sizeof(float) * static_cast<size_t>(size));
    if (bits & SB_NORMED_VALUES) norm_head(value, nullptr, size, phase.op->eps);
    turn(key, phase.op->norm_k);
    if (slots_of(phase)[row] >= 0) CacheSlot<E>(phase, row).put_key(kv_head, key);
  }
  float* query = heads + kv_head * group * size;
  for (int h = 0; h < group; ++h) turn(query + h * size, phase.op->norm_q);
  auto* out = static_cast<typename A::scalar*>(phase.dst.data) + row * phase.dst.stride +
              kv_head * group * size;
  const V factor = splat(phase.op->bias ? phase.op->bias[phase.batch->positions[row]] : 1.0f);
  for (int i = 0; i < group * size; i += W) A::store(out + i, load(query + i) * factor);
}

SB_INLINE const float* value_of(const sb::Phase& phase, int64_t row, int kv_head) {
  const SbShape& shape = *phase.shape;
  return static_cast<const float*>(phase.src.data) + row * phase.src.stride +
         (shape.num_heads + shape.num_kv_heads + kv_head) * shape.head_size;
}

template <class E>
static void put_value_of(const sb::Phase& phase, int64_t row, int kv_head) {
  const int64_t* slots = slots_of(phase);
  const int64_t slot = slots[row];
  if (slot < 0 || phase.op->keys_and_values & SB_NO_KEYS) return;
  const bool is_last = row + 1 == phase.rows || slots[row + 1] != slot + 1;
  CacheSlot<E>(phase, row).put_value(kv_head, value_of(phase, row, kv_head), is_last);
}

// Tokens that share words of V are written together, unless another tile holds one of them.
template <class E>
static void put_values_of_tile(const sb::Phase& phase, const Range& range) {
  if (phase.op->keys_and_values & SB_NO_KEYS) return;
  const auto* slots = slots_of(phase);
  const auto pairs = [=](int64_t row) {  // with the one behind it
    return E::G == 2 && row >= range.first && row + 1 < range.end && slots[row] >= 0 &&
           slots[row] % 2 == 0 && slots[row + 1] == slots[row] + 1;
  };
  for (int64_t row = range.first; row < range.end; ++row) {
    if (pairs(row - 1)) continue;
    for (int head = 0; head < phase.shape->num_kv_heads; ++head)
      if (pairs(row))
        CacheSlot<E>(phase, row).put_values(head, value_of(phase, row, head),
                                            value_of(phase, row + 1, head));
      else
        put_value_of<E>(phase, row, head);
  }
}

template <class A, class E>
static void rotate_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row)
    for (int head = 0; head < phase.shape->num_kv_heads; ++head)
      rotate_group<A, E>(phase, row, head);
  if constexpr (!E::kIsLatent) put_values_of_tile<E>(phase, range);
}

}  // namespace SB_NS
