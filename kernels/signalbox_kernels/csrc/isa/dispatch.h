// Finds the instruction sets of this build and of this machine.
#pragma once

#include "program/step.h"

namespace sb {

// Returns the best set up to `limit`.
int32_t best_isa(int32_t limit);

// Returns null if the set is not compiled in, or the machine lacks it.
const KernelTable* kernels_for(int32_t isa);

}  // namespace sb
