#include "isa/kernels.h"
#include "isa/tiles.h"
#include "sampling/sampling.h"

namespace SB_NS {

static void rest() {
#if defined(__AMX_BF16__)
  give_tiles_back();
#endif
}

}  // namespace SB_NS

// The library's only symbol; sb_use_kernels takes the table.
extern "C" __attribute__((visibility("default"))) const void* sb_kernel_table() {
  static sb::KernelTable table;
  SB_NS::add_products(table);
  SB_NS::add_attention(table);
  SB_NS::add_rows(table);
  SB_NS::add_states(table);
  table.draw = SB_NS::draw_row;
  table.rest = SB_NS::rest;
  return &table;
}
