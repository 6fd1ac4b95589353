#include "program/api.h"

#include <exception>

#include "isa/dispatch.h"
#include "matmul/formats.h"
#include "program/program.h"

namespace {

bool is_valid(const SbShape& s) {
  const auto is_element = [](int32_t e) { return e == SB_F32 || e == SB_BF16; };
  return is_element(s.element) && is_element(s.kv_element) && s.num_kv_heads > 0 &&
         s.num_heads % s.num_kv_heads == 0 && s.head_size > 0 && s.head_size % 16 == 0 &&
         s.block_size > 0 && s.block_size % 16 == 0 &&
         (sb::kKeyChunk % s.block_size == 0 || s.block_size % sb::kKeyChunk == 0);
}

// Whether a weight has a storage that the op computes with.
bool is_valid(const SbOp& op, const SbBuffer* buffers, int32_t element) {
  if (op.kind == SB_LINEAR && op.adapter && !op.parts) return false;
  if (op.kind != SB_LINEAR && op.kind != SB_HEAD) return true;
  if (buffers[op.src].row == SB_CODES) return sb::is_blocks(op.storage);
  return element == SB_F32 || op.storage == SB_STORED_BF16;
}

sb::Program& program_of(void* program) { return *static_cast<sb::Program*>(program); }

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
  for (int32_t i = 0; i < num_ops; ++i)
    if (!is_valid(ops[i], buffers, shape->element)) return nullptr;
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

extern "C" int32_t sb_program_run(void* program, const SbBatch* batch) {
  try {
    return program_of(program).run(*batch) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

extern "C" void sb_program_profile(void* program, int64_t* ns) { program_of(program).profile(ns); }

extern "C" void* sb_program_buffer(void* program, int32_t buffer, int32_t num_tokens) {
  if (!program_of(program).reserve(num_tokens)) return nullptr;
  return program_of(program).buffer(buffer);
}
