#include "program/api.h"

#include <exception>
#include <new>

#include "isa/dispatch.h"
#include "matmul/formats.h"
#include "program/group.h"
#include "program/program.h"
#include "program/states.h"

namespace {

bool is_valid(const SbShape& s) {
  const bool has_elements = (s.element == SB_F32 || s.element == SB_BF16) && s.kv_element >= 0 &&
                            s.kv_element < SB_NUM_ELEMENTS;
  const bool is_latent = s.value_size > 0 && s.value_size % sb::kPanel == 0 && s.value_size < s.head_size &&
                         s.num_kv_heads == 1 && s.kv_element <= SB_BF16;
  return has_elements && (is_latent || !s.value_size) && s.num_kv_heads > 0 &&
         s.num_heads % s.num_kv_heads == 0 && s.head_size > 0 && s.head_size % 16 == 0 &&
         s.block_size > 0 && s.block_size % 16 == 0 &&
         (sb::kKeyChunk % s.block_size == 0 || s.block_size % sb::kKeyChunk == 0);
}

// Whether the op writes what its rounding makes.
bool is_valid_rounding(const SbOp& op, const SbBuffer* buffers) {
  if (op.rounding == SB_ROUND_NONE) return true;
  if (op.kind != SB_NORM && op.kind != SB_CODE && op.kind != SB_GATED_NORM) return false;
  const bool has_zero = op.rounding == SB_ROUND_INT8_WITH_ZERO || op.zero != 0.0f;
  const bool is_int8 = op.rounding == SB_ROUND_INT8;
  if (buffers[op.dst].row == SB_CODES && (has_zero || !is_int8)) return false;
  if (buffers[op.dst].row == SB_WIDE_CODES) return false;
  return op.rounding > 0 && op.rounding <= SB_ROUND_E4M3 && op.group >= 0 && op.group % sb::kGroup == 0;
}

bool is_valid(const SbRouting& r) {
  return r.num_experts > 0 && r.num_experts <= SB_MOST_EXPERTS && r.num_chosen > 0 &&
         r.num_chosen <= r.num_experts && r.num_groups > 0 && r.num_experts % r.num_groups == 0 &&
         r.num_chosen_groups > 0 && r.num_chosen_groups <= r.num_groups && r.num_summed > 0;
}

// Whether the op is one that experts compute, of as many rows as `routing` chooses; or reads and writes none.
bool is_valid_routing(const SbOp& op, const SbBuffer* buffers, const SbRouting* routing) {
  const SbBuffer &src = buffers[op.src], &dst = buffers[op.dst];
  if (op.kind == SB_ROUTE) return src.row == SB_FLOATS && !src.copies && is_valid(*routing);
  const bool is_gathered = op.kind == SB_GATHER, is_mixed = op.kind == SB_MIX;
  const int32_t copies = is_gathered ? dst.copies : src.copies;
  if (!copies) return !dst.copies && !is_gathered && !is_mixed;
  if (!routing || copies != routing->num_chosen) return false;
  if (is_gathered) return !src.copies && src.row == dst.row && src.width == dst.width;
  if (is_mixed) return !dst.copies && src.row == SB_FLOATS && src.width == dst.width;
  const bool is_product = op.kind == SB_LINEAR && !op.adapter;
  return dst.copies == copies && (is_product || op.kind == SB_CODE);
}

// Whether an op's own heads can be computed, and lie in a block.
bool has_valid_heads(const SbOp& op, const SbShape& shape) {
  if (op.kind != SB_ROTATE && op.kind != SB_ATTEND) return true;
  const bool is_own = op.head_size != 0;
  const int32_t size = is_own ? op.head_size : shape.head_size;
  if (op.kind == SB_ROTATE && (op.n < 0 || op.n > size || op.n % 2)) return false;
  if (shape.value_size && (is_own || op.keys_and_values)) return false;
  const int64_t layer = int64_t{shape.num_kv_heads} * shape.head_size, kv_heads = is_own ? op.num_kv_heads : shape.num_kv_heads;
  if (op.layer < 0 || op.layer * layer + kv_heads * size > shape.num_layers * layer) return false;
  return !is_own || (size > 0 && size % 16 == 0 && op.num_kv_heads > 0 && op.num_heads % op.num_kv_heads == 0);
}

// Whether the op is a product of several heads, each with its own matrix, or of one matrix.
bool has_valid_matrices(const SbOp& op, const SbBuffer* buffers) {
  if (!op.num_matrices) return true;
  const bool is_aligned = op.n % sb::kPanel == 0 && op.src_step % sb::kPanel == 0 && op.dst_step % sb::kPanel == 0;
  const bool has_steps = !op.src_step || buffers[op.src].row == SB_ELEMENTS;
  const bool is_alone = !op.adapter && !op.bias && !buffers[op.src].copies;
  const bool stores = op.mode == SB_STORE || op.mode == SB_ACTIVATE;
  return op.kind == SB_LINEAR && op.num_matrices > 0 && is_aligned && has_steps && is_alone && stores;
}

// Whether an SB_CODE has rows of its mode, and columns of gates for all of them.
bool is_valid_code(const SbOp& op, const SbBuffer* buffers) {
  const SbBuffer &src = buffers[op.src], &gate = buffers[op.gate];
  if (op.mode != 2) return op.mode == (src.row == SB_FLOATS);
  const bool has_gates = gate.row == SB_FLOATS && op.column >= 0 && op.column + op.n <= gate.width;
  return src.row == SB_ELEMENTS && !op.weight && op.n == src.width && op.n % SB_UNIT_COLUMNS == 0 && has_gates;
}

// Whether the op is valid by itself: its numbers are in range, and it computes with its weight's storage.
bool is_valid(const SbOp& op, const SbBuffer* buffers, const SbShape& shape) {
  if (!is_valid_rounding(op, buffers) || !has_valid_matrices(op, buffers)) return false;
  if (!has_valid_heads(op, shape) || !sb::is_valid_recurrent(op, buffers)) return false;
  if (op.kind == SB_LINEAR && op.adapter && !op.parts) return false;
  if (op.activation == SB_CLAMPED && op.mode != SB_GATED && op.mode != SB_GATE) return false;
  if (op.kind == SB_CODE && !is_valid_code(op, buffers)) return false;
  if (op.kind == SB_SUM && buffers[op.src].row != SB_SHARED) return false;
  if (op.kind == SB_EMBED && op.mode & SB_ADDED && 4 * int64_t{buffers[op.dst].width} > sb::kProductScratch)
    return false;
  if (op.kind != SB_LINEAR && op.kind != SB_HEAD) return true;
  if (sb::code_bytes(buffers[op.src].row)) return sb::is_blocks(op.storage);
  return shape.element == SB_F32 || op.storage == SB_STORED_BF16 || sb::is_float_codes(op.storage);
}

sb::Program& program_of(void* program) { return *static_cast<sb::Program*>(program); }

sb::Group& group_of(void* group) { return *static_cast<sb::Group*>(group); }

}  // namespace

extern "C" int32_t sb_multiplies_bfloat16(int32_t isa) {
  const sb::KernelTable* kernels = sb::kernels_for(isa);
  return kernels && kernels->tile[SB_BF16][SB_LINEAR];
}

extern "C" void* sb_program_new(const SbShape* shape, const SbOp* ops, int32_t num_ops,
                                const SbBuffer* buffers, int32_t num_buffers, int32_t num_threads,
                                int32_t isa) {
  const sb::KernelTable* kernels = sb::kernels_for(isa);
  if (!kernels || !is_valid(*shape) || num_threads < 1) return nullptr;
  if (!kernels->tile[shape->element][SB_LINEAR]) return nullptr;
  const SbRouting* routing = nullptr;
  for (int32_t i = 0; i < num_ops; ++i) {
    if (ops[i].kind == SB_ROUTE) routing = static_cast<const SbRouting*>(ops[i].weight);
    if (!is_valid(ops[i], buffers, *shape) || !is_valid_routing(ops[i], buffers, routing)) return nullptr;
  }
  try {
    return new sb::Program(*shape, {ops, ops + num_ops}, {buffers, buffers + num_buffers},
                           num_threads, *kernels);
  } catch (const std::exception&) {
    return nullptr;
  }
}

extern "C" void sb_program_free(void* program) { delete &program_of(program); }

extern "C" void sb_program_bind(void* program, void* pool, int64_t block_bytes) {
  program_of(program).bind(static_cast<char*>(pool), block_bytes);
}

extern "C" void sb_program_adapters(void* program, const SbAdapter* table, int32_t num_adapters,
                                    int32_t num_sites) {
  program_of(program).set_adapters(table, num_adapters, num_sites);
}

extern "C" int64_t sb_group_bytes(int32_t num_ranks, int64_t slot_bytes) {
  return sb::Group::bytes(num_ranks, slot_bytes);
}

extern "C" void* sb_group_new(void* memory, int32_t rank, int32_t num_ranks, int64_t slot_bytes) {
  return new (std::nothrow) sb::Group(memory, rank, num_ranks, slot_bytes);
}

extern "C" void sb_group_free(void* group) { delete &group_of(group); }

extern "C" uint32_t sb_group_joined(void* group) { return group_of(group).joined(); }

extern "C" int64_t sb_group_waited_ns(void* group) { return group_of(group).waited_ns(); }

extern "C" void sb_group_call_off(void* group) { group_of(group).call_off(); }

extern "C" void sb_program_join(void* program, void* group) { program_of(program).join(&group_of(group)); }

extern "C" int32_t sb_program_run(void* program, const SbBatch* batch) {
  try {
    return program_of(program).run(*batch);
  } catch (const std::exception&) {
    return 1;
  }
}

extern "C" void sb_program_profile(void* program, int64_t* ns) { program_of(program).profile(ns); }

extern "C" void* sb_program_buffer(void* program, int32_t buffer, int32_t num_tokens) {
  if (!program_of(program).reserve(num_tokens)) return nullptr;
  return program_of(program).buffer(buffer);
}
