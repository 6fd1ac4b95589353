#define SB_NS sb_amx
#define SB_WIDTH 16
#include "isa/kernels.h"

const sb::KernelTable* sb::amx_kernels() { return sb_amx::kernels(); }
