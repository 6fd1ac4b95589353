// What a number of threads can do here at the most: read memory, and multiply with operands in registers.
//
// Usage: machine_rates THREADS. Prints bytes/s read, and operations/s (two for each multiplication) in
// the arithmetic of bfloat16 weights and in that of bytes, with what this file was compiled for.
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kChains = 12;  // more than latency times throughput of any product
constexpr int kRounds = 5;
constexpr size_t kBytes = size_t{512} << 20;  // more than any cache

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the least seconds of some runs in which all threads do their part.
template <class Part>
double least_seconds(int num_threads, Part part) {
  double least = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    std::vector<std::thread> threads;
    for (int t = 1; t < num_threads; ++t) threads.emplace_back(part, t);
    part(0);
    for (std::thread& thread : threads) thread.join();
    const double seconds = seconds_since(start);
    if (seconds < least) least = seconds;
  }
  return least;
}

volatile uint64_t sink;

void read_part(const uint64_t* words, size_t count) {
  uint64_t sums[16] = {};
  for (size_t i = 0; i + 16 <= count; i += 16) {
    __builtin_prefetch(words + i + 256);
    for (int lane = 0; lane < 16; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t all = 0;
  for (uint64_t sum : sums) all ^= sum;
  sink = all;
}

#if defined(__AVX512F__)
using Floats = __m512;
using Whole = __m512i;
constexpr int kLanes = 16;
Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Floats = __m256;
using Whole = __m256i;
constexpr int kLanes = 8;
Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#endif

// Operations of one instruction on floats of 16 bits, or on float32 where no instruction takes them.
#if defined(__AVX512BF16__)
constexpr int kFloatOperations = 4 * kLanes;
Floats step(Floats sum, Floats x, Floats y) {
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}
#else
constexpr int kFloatOperations = 2 * kLanes;
Floats step(Floats sum, Floats x, Floats y) { return fma(x, y, sum); }
#endif

#if defined(__AVX512VNNI__)
Whole step(Whole sum, Whole x, Whole y) { return _mm512_dpbusd_epi32(sum, x, y); }
#elif defined(__AVX512BW__)
Whole step(Whole sum, Whole x, Whole y) {
  return _mm512_add_epi32(
      sum, _mm512_madd_epi16(_mm512_maddubs_epi16(x, y), _mm512_set1_epi16(1)));
}
#elif defined(__AVXVNNI__)
Whole step(Whole sum, Whole x, Whole y) { return _mm256_dpbusd_avx_epi32(sum, x, y); }
#else
Whole step(Whole sum, Whole x, Whole y) {
  return _mm256_add_epi32(
      sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1)));
}
#endif
constexpr int kByteOperations = 2 * 4 * kLanes;

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr int kAskForState = 0x1023, kTileData = 18;  // a process asks Linux for tiles once
constexpr int kTileFloatOperations = 2 * 16 * 16 * 32, kTileByteOperations = 2 * 16 * 16 * 64;

void tile_part(int64_t steps, bool bytes) {
  alignas(64) static const uint8_t zeros[1024] = {};
  // Static, because g++ 12 drops the stores to one that only the intrinsic reads.
  static const TileConfig config;
  _tile_loadconfig(&config);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  for (int64_t i = 0; i < steps; i += 4) {
    if (bytes) {
      _tile_dpbusd(0, 4, 5);
      _tile_dpbusd(1, 4, 5);
      _tile_dpbusd(2, 4, 5);
      _tile_dpbusd(3, 4, 5);
    } else {
      _tile_dpbf16ps(0, 4, 5);
      _tile_dpbf16ps(1, 4, 5);
      _tile_dpbf16ps(2, 4, 5);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_release();
}
#endif

template <class Vector>
void multiply_part(int64_t steps) {
  Vector sums[kChains] = {}, x{}, y{};
  // What the compiler knows to be equal it computes once: sums that begin alike, products of the
  // same operands.
#pragma GCC unroll 12
  for (Vector& sum : sums) asm volatile("" : "+v"(sum));
  for (int64_t i = 0; i < steps; i += kChains) {
#pragma GCC unroll 12
    for (Vector& sum : sums) {
      asm volatile("" : "+v"(x), "+v"(y));
      sum = step(sum, x, y);
    }
  }
  for (Vector& sum : sums) asm volatile("" : : "v"(sum));
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const size_t words = kBytes / sizeof(uint64_t);
  std::vector<uint64_t> memory(words, 1);
  const double reading = least_seconds(threads, [&](int t) {
    const size_t first = words * t / threads, end = words * (t + 1) / threads;
    read_part(memory.data() + first, end - first);
  });
  constexpr int64_t steps = 120'000'000;
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
  constexpr int64_t tiles = steps / 32;
  syscall(SYS_arch_prctl, kAskForState, kTileData);
  const double floats = least_seconds(threads, [](int) { tile_part(tiles, false); });
  const double bytes = least_seconds(threads, [](int) { tile_part(tiles, true); });
  const double float_operations = double(kTileFloatOperations) * tiles;
  const double byte_operations = double(kTileByteOperations) * tiles;
#else
  const double floats = least_seconds(threads, [](int) { multiply_part<Floats>(steps); });
  const double bytes = least_seconds(threads, [](int) { multiply_part<Whole>(steps); });
  const double float_operations = double(kFloatOperations) * steps;
  const double byte_operations = double(kByteOperations) * steps;
#endif
  std::printf("%.6g %.6g %.6g\n", kBytes / reading, threads * float_operations / floats,
              threads * byte_operations / bytes);
}
