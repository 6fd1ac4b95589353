// One instruction set's functions; an including file sets SB_NS and SB_WIDTH and its own flags.
#pragma once

#include "attention/attend.h"
#include "matmul/product_tile.h"
#include "attention/rows.h"
#include "sampling/sampling.h"

namespace SB_NS {

template <class E>
constexpr void fill(sb::TileFunction (&tile)[7]) {
  tile[SB_EMBED] = embed_tile<E>;
  tile[SB_NORM] = norm_tile<E>;
  tile[SB_LINEAR] = product_tile<E>;
  tile[SB_ROTATE] = rotate_tile<E>;
  tile[SB_ATTEND] = attend_tile<E>;
  tile[SB_HEAD] = product_tile<E>;
  tile[SB_CODE] = code_tile<E>;
}

static void rest() {
#if defined(__AMX_BF16__)
  give_tiles_back();
#endif
}

static const sb::KernelTable* kernels() {
  static sb::KernelTable table;
  fill<F32>(table.tile[SB_F32]);
  fill<Bf16>(table.tile[SB_BF16]);
  table.draw = draw_row;
  table.rest = rest;
  return &table;
}

}  // namespace SB_NS
