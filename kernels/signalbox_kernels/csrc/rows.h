// What is done token by token: embedding, RMSNorm, and rotation with the write to the cache.
#pragma once

#include <cmath>

#include "coding.h"
#include "step.h"

namespace SB_NS {

struct Range {
  int64_t first, end;
};

SB_INLINE Range rows_of_tile(const sb::Phase& phase, int32_t tile) {
  const int64_t first = static_cast<int64_t>(tile) * phase.rows_per_tile;
  const int64_t end = first + phase.rows_per_tile;
  return {first, end < phase.rows ? end : phase.rows};
}

template <class E>
static void embed_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const auto* weight = static_cast<const typename E::scalar*>(phase.op->weight);
  const int64_t size = phase.shape->hidden_size, depth = phase.depth;
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row) {
    float* out = static_cast<float*>(phase.dst.data) + row * phase.dst.stride;
    const int64_t token = phase.batch->token_ids[row];
    if (phase.op->format != SB_PLAIN) {  // its padding is zero
      sb::with_format(phase.op->format, [&](auto format) {
        const auto* packed = static_cast<const char*>(phase.op->weight);
        read_row<decltype(format)>(packed, token, depth / kGroup, out);
      });
      continue;
    }
    for (int64_t i = size; i < phase.dst.stride; ++i) out[i] = 0.0f;  // a failed row left NaN there
    if (phase.op->mode == 0) {
      for (int64_t i = 0; i < size; ++i) out[i] = E::widen(weight[token * size + i]);
      continue;
    }
    const auto* column = weight + token / sb::kPanel * depth * sb::kPanel +
                         token % sb::kPanel * E::G;
    for (int64_t i = 0; i < size; ++i)
      out[i] = E::widen(column[i / E::G * sb::kPanel * E::G + i % E::G]);
  }
}

// Writes a row's elements, or its codes, of the vectors that x(i) gives.
template <class E, class F>
SB_INLINE void put_row(const sb::Phase& phase, int64_t row, int64_t padded, F&& x) {
  if (!phase.is_coded) {
    auto* out = static_cast<typename E::scalar*>(phase.dst.data) + row * phase.dst.stride;
    for (int64_t i = 0; i < padded; i += W) E::store(out + i, x(i));
    return;
  }
  auto* out = reinterpret_cast<CodedGroup*>(static_cast<char*>(phase.dst.data) +
                                            row * phase.dst.stride);
  for (int64_t i = 0; i < padded; i += kGroup, ++out) {
    V group[kGroupVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kGroupVectors; ++v) group[v] = x(i + v * W);
    code_group(group, out);
  }
}

template <class E>
static void code_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row) {
    const auto* x = static_cast<const typename E::scalar*>(phase.src.data) + row * phase.src.stride;
    put_row<E>(phase, row, phase.src.stride, [=](int64_t i) SB_LAMBDA { return E::load(x + i); });
  }
}

template <class E>
static void norm_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const auto* weight = static_cast<const float*>(phase.op->weight);
  const int64_t padded = phase.src.stride;
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row) {
    const int64_t token = phase.op->mode ? phase.batch->row_tokens[row] : row;
    const float* x = static_cast<const float*>(phase.src.data) + token * phase.src.stride;
    V squares{};
    for (int64_t i = 0; i < padded; i += W) squares += load(x + i) * load(x + i);
    const float mean = sum(squares) / static_cast<float>(phase.shape->hidden_size);
    const V factor = splat(1.0f / std::sqrt(mean + phase.op->eps));
    put_row<E>(phase, row, padded, [=](int64_t i) SB_LAMBDA {
      return load(x + i) * factor * load(weight + i);
    });
  }
}

SB_INLINE void norm_head(float* head, const float* weight, int size, float eps) {
  float squares = 0.0f;
  for (int i = 0; i < size; ++i) squares += head[i] * head[i];
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(size) + eps);
  for (int i = 0; i < size; ++i) head[i] = head[i] * factor * weight[i];
}

// Rotates the pairs (i, i + size / 2) of a head.
SB_INLINE void rotate_head(float* head, const float* angles, int size) {
  const int half = size / 2;
  const float* cosines = angles;
  const float* sines = angles + half;
  for (int i = 0; i < half; ++i) {
    const float x = head[i], y = head[i + half];
    head[i] = x * cosines[i] - y * sines[i];
    head[i + half] = y * cosines[i] + x * sines[i];
  }
}

// A layer's K of a block and head is [head_size / G, block_size, G], V [block_size / G, head_size, G].
template <class E>
static void cache_head(const sb::Phase& phase, int64_t token, int head, const float* key,
                       const float* value) {
  const SbShape& shape = *phase.shape;
  const int64_t slot = phase.batch->slots[token];
  const int size = shape.head_size, block_size = shape.block_size;
  const int64_t offset = slot % block_size, row = static_cast<int64_t>(size) * block_size;
  auto* keys = reinterpret_cast<typename E::scalar*>(phase.pool + slot / block_size * phase.block_bytes) +
               (static_cast<int64_t>(phase.op->layer) * shape.num_kv_heads + head) * 2 * row;
  auto* values = keys + row + offset / E::G * size * E::G + offset % E::G;
  for (int i = 0; i < size; ++i)
    keys[(i / E::G * block_size + offset) * E::G + i % E::G] = E::narrow(key[i]);
  for (int i = 0; i < size; ++i) values[i * E::G] = E::narrow(value[i]);
  // What another sequence left beside the last token must not be NaN: 0 times NaN is NaN.
  const bool is_last = token + 1 == phase.rows || phase.batch->slots[token + 1] != slot + 1;
  if (E::G == 2 && offset % 2 == 0 && is_last)
    for (int i = 0; i < size; ++i) values[i * E::G + 1] = E::narrow(0.0f);
}

template <class E>
static void rotate_tile(const sb::Phase& phase, const sb::Claim& claim) {
  const SbShape& shape = *phase.shape;
  const SbOp& op = *phase.op;
  const int size = shape.head_size, num_heads = shape.num_heads, num_kv = shape.num_kv_heads;
  const Range range = rows_of_tile(phase, claim.tile);
  for (int64_t row = range.first; row < range.end; ++row) {
    float* heads = static_cast<float*>(phase.src.data) + row * phase.src.stride;
    auto* out = static_cast<typename E::scalar*>(phase.dst.data) + row * phase.dst.stride;
    const float* angles = shape.rotary + phase.batch->positions[row] * size;
    for (int h = 0; h < num_heads + num_kv; ++h) {
      const float* weight = h < num_heads ? op.norm_q : op.norm_k;
      if (weight) norm_head(heads + h * size, weight, size, op.eps);
      rotate_head(heads + h * size, angles, size);
    }
    for (int i = 0; i < num_heads * size; i += W) E::store(out + i, load(heads + i));
    if (phase.batch->slots[row] < 0) continue;
    const float* keys = heads + num_heads * size;
    for (int h = 0; h < num_kv; ++h)
      cache_head<E>(phase, row, h, keys + h * size, keys + (num_kv + h) * size);
  }
}

}  // namespace SB_NS
