// Which instruction sets there are, in this build and on this machine.
#pragma once

#include "program/step.h"

namespace sb {

// The best set up to `limit`.
int32_t best_isa(int32_t limit);

// Null if the set is not compiled in, or the machine lacks it.
const KernelTable* kernels_for(int32_t isa);

}  // namespace sb
