// The parts of an instruction set's kernel table; each unit in isa/set/ fills one.
//
// A set is compiled with SB_NS (its namespace), SB_WIDTH and the set's own flags, into a library of its
// own, so no function that is compiled for one set is ever linked into another.
#pragma once

#include "program/step.h"

namespace SB_NS {

void add_products(sb::KernelTable& table);
void add_attention(sb::KernelTable& table);
void add_rows(sb::KernelTable& table);
void add_states(sb::KernelTable& table);

}  // namespace SB_NS
