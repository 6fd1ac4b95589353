// Matrix registers (AMX): a tile is up to 16 rows of 64 bytes; one instruction adds the products of
// 16 rows by 32 elements with 32 elements by 16 columns, which is how packed weights and K and V lie.
//
// Registers 0 to 3 hold sums, the others what is multiplied. An element is summed 32 by 32, the even
// and the odd ones apart, whatever rows are beside it.
#pragma once

#include "isa/elements.h"

#if defined(__AMX_BF16__)

namespace SB_NS {

constexpr int kTileRows = 16;
constexpr int kTileWords = 16;  // of a row

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[8] = {};
  uint8_t reserved_bytes[16] = {};
  uint8_t rows[8] = {};
  uint8_t reserved_rows[8] = {};

  void set(int tile, int num_rows, int num_words) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(4 * num_words);
  }

  // Not the intrinsic: GCC takes it to read eight bytes, and drops what is written to the others.
  void load() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};

// The thread's configuration of tiles; no palette if they are released. One for all units of the set.
inline constinit thread_local TileConfig configured{0};

// Configures the thread's tiles. Loading costs a quarter of a microsecond, a tenth of what
// it takes to stream a panel, so they stay so until the step ends.
inline void use_tiles(const TileConfig& config) {
  if (!std::memcmp(&configured, &config, sizeof config)) return;
  config.load();
  configured = config;
}

inline void give_tiles_back() {
  if (!configured.palette) return;
  _tile_release();
  configured.palette = 0;
}

// Sums 0 to 3 are up to 32 rows by 32 columns; 4 and 5 rows of the left side, 6 and 7 columns of the
// right.
SB_INLINE TileConfig product_config(int64_t rows) {
  const auto at_most = [](int64_t x) {
    return static_cast<uint8_t>(x < kTileRows ? x : kTileRows);
  };
  const uint8_t low = at_most(rows), high = rows > kTileRows ? at_most(rows - kTileRows) : low;
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, kTileRows, kTileWords);
  config.rows[0] = config.rows[1] = config.rows[4] = low;
  config.rows[2] = config.rows[3] = config.rows[5] = high;
  return config;
}

// The instructions, by register. They touch memory, which GCC's intrinsics do not tell the compiler.
template <int Tile>
SB_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

template <int Tile>
SB_INLINE void tile_load(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(Tile), "r"(from), "r"(row_bytes) : "memory");
}

template <int Tile>
SB_INLINE void tile_store(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(Tile), "r"(to), "r"(row_bytes) : "memory");
}

template <int Sum, int Left, int Right>
SB_INLINE void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Left), "i"(Right));
}

// Signed bytes by unsigned ones, in whole numbers.
template <int Sum, int Left, int Right>
SB_INLINE void tile_multiply_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(Left), "i"(Right));
}

template <int N>
struct Tile {
  static constexpr int value = N;
};

// Calls f with Tile<0> to Tile<N - 1>.
template <int N, class F>
SB_INLINE void each_tile(F&& f) {
  if constexpr (N > 1) each_tile<N - 1>(f);
  f(Tile<N - 1>{});
}

// c[32 or 16, 32] = a times a panel; strides in words. ahead(k) fetches what comes after.
template <bool Both, class Ahead>
SB_INLINE void tile_product(const word* a, int64_t a_stride, const word* b, int64_t depth, float* c,
                            Ahead&& ahead) {
  constexpr int panel = sb::kPanel;
  constexpr int64_t b_bytes = 4 * panel, c_bytes = 4 * panel;
  const int64_t a_bytes = 4 * a_stride;
  each_tile<Both ? 4 : 2>([](auto sum) SB_LAMBDA { tile_zero<decltype(sum)::value>(); });
  for (int64_t k = 0; k < depth; k += kTileWords) {
    tile_load<6>(b + k * panel, b_bytes);
    tile_load<4>(a + k, a_bytes);
    tile_multiply<0, 4, 6>();
    tile_load<7>(b + k * panel + kTileWords, b_bytes);
    tile_multiply<1, 4, 7>();
    if (Both) {
      tile_load<5>(a + kTileRows * a_stride + k, a_bytes);
      tile_multiply<2, 5, 6>();
      tile_multiply<3, 5, 7>();
    }
    ahead(k);
  }
  tile_store<0>(c, c_bytes);
  tile_store<1>(c + kTileWords, c_bytes);
  if (!Both) return;
  tile_store<2>(c + kTileRows * panel, c_bytes);
  tile_store<3>(c + kTileRows * panel + kTileWords, c_bytes);
}

// Sums 0 to 3 are of one group of rows; 4 and 5 are rows and columns along 32 elements, 6 and 7 along
// 16 of them.
SB_INLINE TileConfig attention_config(int rows) {
  constexpr int half = kTileWords / 2;
  TileConfig config;
  for (int tile = 0; tile < 5; ++tile) config.set(tile, rows, kTileWords);
  config.set(5, kTileRows, kTileWords);
  config.set(6, rows, half);
  config.set(7, half, kTileWords);
  return config;
}

}  // namespace SB_NS

#endif
