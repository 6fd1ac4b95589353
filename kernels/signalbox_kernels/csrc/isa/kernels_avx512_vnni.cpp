#define SB_NS sb_avx512_vnni
#define SB_WIDTH 16
#include "isa/kernels.h"

const sb::KernelTable* sb::avx512_vnni_kernels() { return sb_avx512_vnni::kernels(); }
