#define SB_NS sb_avx2
#define SB_WIDTH 8
#include "isa/kernels.h"

const sb::KernelTable* sb::avx2_kernels() { return sb_avx2::kernels(); }
