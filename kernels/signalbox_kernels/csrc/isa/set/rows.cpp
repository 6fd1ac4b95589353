#include "attention/rows.h"
#include "isa/kernels.h"

namespace SB_NS {

template <class E>
static void add_rows_of(sb::TileFunction (&tile)[SB_NUM_KINDS]) {
  tile[SB_EMBED] = embed_tile;
  tile[SB_NORM] = norm_tile<E>;
  tile[SB_CODE] = code_tile<E>;
  tile[SB_SUM] = sum_tile;
  tile[SB_GATHER] = gather_tile<E>;
  tile[SB_MIX] = mix_tile;
}

void add_rows(sb::KernelTable& table) {
  add_rows_of<F32>(table.tile[SB_F32]);
  table.rotate[SB_F32][SB_F32] = rotate_tile<F32, F32>;
  table.rotate[SB_F32][SB_BF16] = rotate_tile<F32, WideBf16>;
  table.rotate[SB_F32][SB_INT8] = rotate_tile<F32, Int8>;
  table.rotate[SB_F32][SB_E4M3] = rotate_tile<F32, E4m3>;
  table.rotate_latents[SB_F32][SB_F32] = rotate_tile<F32, Latents32>;
  table.rotate_latents[SB_F32][SB_BF16] = rotate_tile<F32, Latents16>;
#if defined(__AVX512BF16__)
  add_rows_of<Bf16>(table.tile[SB_BF16]);
  table.rotate[SB_BF16][SB_F32] = rotate_tile<Bf16, F32>;
  table.rotate[SB_BF16][SB_BF16] = rotate_tile<Bf16, Bf16>;
  table.rotate[SB_BF16][SB_INT8] = rotate_tile<Bf16, Int8>;
  table.rotate[SB_BF16][SB_E4M3] = rotate_tile<Bf16, E4m3>;
  table.rotate_latents[SB_BF16][SB_F32] = rotate_tile<Bf16, Latents32>;
  table.rotate_latents[SB_BF16][SB_BF16] = rotate_tile<Bf16, Latents16>;
#endif
}

}  // namespace SB_NS
