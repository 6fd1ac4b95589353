#define SB_NS sb_portable
#define SB_WIDTH 8
#include "isa/kernels.h"

const sb::KernelTable* sb::portable_kernels() { return sb_portable::kernels(); }
