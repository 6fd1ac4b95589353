#include "attention/attend.h"
#include "attention/latents.h"
#include "isa/kernels.h"

namespace SB_NS {

void add_attention(sb::KernelTable& table) {
  table.attend[SB_F32][SB_F32] = attend_tile<F32, F32>;
  table.attend[SB_F32][SB_BF16] = attend_tile<F32, WideBf16>;
  table.attend[SB_F32][SB_INT8] = attend_tile<F32, Int8>;
  table.attend[SB_F32][SB_E4M3] = attend_tile<F32, E4m3>;
  table.attend_to_latents[SB_F32][SB_F32] = attend_to_latents<F32, Latents32>;
  table.attend_to_latents[SB_F32][SB_BF16] = attend_to_latents<F32, Latents16>;
#if defined(__AVX512BF16__)
  table.attend[SB_BF16][SB_F32] = attend_tile<Bf16, F32>;
  table.attend[SB_BF16][SB_BF16] = attend_tile<Bf16, Bf16>;
  table.attend[SB_BF16][SB_INT8] = attend_tile<Bf16, Int8>;
  table.attend[SB_BF16][SB_E4M3] = attend_tile<Bf16, E4m3>;
  table.attend_to_latents[SB_BF16][SB_F32] = attend_to_latents<Bf16, Latents32>;
  table.attend_to_latents[SB_BF16][SB_BF16] = attend_to_latents<Bf16, Latents16>;
#endif
}

}  // namespace SB_NS
