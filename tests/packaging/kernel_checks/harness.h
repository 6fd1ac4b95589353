// What the checks of check_kernels.cpp share: the libraries, numbers, comparisons.
#pragma once

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "isa/dispatch.h"
#include "matmul/formats.h"

// A function of the common library.
#define CALL(name) reinterpret_cast<decltype(&name)>(symbol(#name))

inline void* common = nullptr;
inline int32_t isa = 0;
inline int num_passed = 0, num_failed = 0;

[[noreturn]] inline void stop(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::exit(2);
}

inline void* symbol(const char* name) {
  void* found = dlsym(common, name);
  if (!found) stop(dlerror());
  return found;
}

inline void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) stop(dlerror());
  return library;
}

inline void check(bool is_right, const char* what, double actual, double expected) {
  is_right ? ++num_passed : ++num_failed;
  if (!is_right) std::printf("%s: %.9g, not %.9g\n", what, actual, expected);
}

inline void check_near(const char* what, double actual, double expected, double allowed) {
  check(std::fabs(actual - expected) <= allowed, what, actual, expected);
}

// Uniform in [-1, 1).
inline float random_number() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
}

inline std::vector<float> random_numbers(int64_t count) {
  std::vector<float> made(static_cast<size_t>(count));
  for (float& x : made) x = random_number();
  return made;
}

// The nearest bfloat16 of a finite number.
inline uint16_t to_bfloat16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

inline float of_bfloat16(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// Numbers as a program's elements, and as those read.
struct Elements {
  std::vector<char> bytes;
  std::vector<float> values;

  Elements(int32_t element, std::vector<float> numbers) : values(std::move(numbers)) {
    if (element == SB_F32) {
      bytes.resize(4 * values.size());
      std::memcpy(bytes.data(), values.data(), bytes.size());
      return;
    }
    bytes.resize(2 * values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t h = to_bfloat16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &h, sizeof h);
      values[i] = of_bfloat16(h);
    }
  }
};

inline char* aligned(size_t bytes) {
  const size_t size = (bytes + 63) / 64 * 64;
  auto* memory = static_cast<char*>(std::aligned_alloc(64, size));
  std::memset(memory, 0, size);
  return memory;
}

// A program of some ops, and a batch whose token i is at position and slot i, and whose state is in eight pages.
struct Run {
  void* program;
  std::vector<int64_t> places;
  std::vector<int64_t> start{0, 0};
  std::vector<int64_t> context{0};
  std::vector<int32_t> table{0, 1, 2, 3, 4, 5, 6, 7}, none{-1}, runs{0, 1};
  int32_t num_heads = 1;

  Run(const SbShape& shape, std::vector<SbOp> ops, std::vector<SbBuffer> buffers)
      : program(CALL(sb_program_new)(&shape, ops.data(), static_cast<int32_t>(ops.size()),
                                     buffers.data(), static_cast<int32_t>(buffers.size()), 2, isa)) {
    if (!program) stop("no program");
  }
  ~Run() { CALL(sb_program_free)(program); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  char* buffer(int32_t index, int32_t rows) {
    return static_cast<char*>(CALL(sb_program_buffer)(program, index, rows));
  }

  // Computes `count` tokens after the `past` ones of the sequence.
  void step(int32_t past, int32_t count) {
    places.resize(static_cast<size_t>(count));
    for (int32_t i = 0; i < count; ++i) places[static_cast<size_t>(i)] = past + i;
    start[1] = count;
    context[0] = past + count;
    SbBatch batch{};
    batch.num_tokens = count;
    batch.token_ids = batch.positions = places.data();
    batch.attention = {1, 8, places.data(), start.data(), context.data(), table.data()};
    batch.states = {1, 8, runs.data(), start.data(), past ? table.data() : none.data(), table.data()};
    if (CALL(sb_program_run)(program, &batch)) stop("no memory");
  }
};

inline SbShape make_shape(int32_t element) {
  SbShape shape{};
  shape.element = element;
  shape.num_layers = shape.num_heads = shape.num_kv_heads = 1;
  shape.head_size = shape.block_size = 16;
  shape.hidden_size = 64;
  shape.vocab_size = 100;
  shape.scale = 1.0f;
  return shape;
}
