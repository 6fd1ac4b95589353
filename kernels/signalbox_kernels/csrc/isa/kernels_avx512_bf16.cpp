#define SB_NS sb_avx512_bf16
#define SB_WIDTH 16
#include "isa/kernels.h"

const sb::KernelTable* sb::avx512_bf16_kernels() { return sb_avx512_bf16::kernels(); }
