#include "program/states.h"

namespace sb {

namespace {

// Whether a buffer of float32 has these columns; a first column of -1 is none.
bool has_columns(const SbBuffer& buffer, int64_t first, int64_t count) {
  return first >= 0 && first + count <= buffer.width && buffer.row == SB_FLOATS && !buffer.copies;
}

bool is_valid(const SbConvolution& how, const SbBuffer& src, const SbBuffer& dst) {
  const int64_t n = how.num_channels;
  const bool has_factors = (how.factor == -1 || has_columns(src, how.factor, n)) &&
                           (how.gate == -1 || has_columns(src, how.gate, n));
  return n > 0 && n % SB_UNIT_COLUMNS == 0 && how.width >= 2 && how.width <= 4 && has_columns(src, how.column, n) &&
         has_columns(dst, 0, n) && has_factors &&
         (how.activation == SB_SILU || how.activation == SB_IDENTITY);
}

bool is_valid(const SbScan& how, const SbBuffer& src, const SbBuffer& dst, const SbBuffer& gate) {
  const bool has_heads = how.num_key_heads > 0 && how.num_heads > 0 && how.num_heads % how.num_key_heads == 0;
  const bool has_sizes = how.key_size > 0 && how.key_size <= SB_MOST_KEY_SIZE && how.key_size % SB_UNIT_COLUMNS == 0 &&
                         how.value_size > 0 && how.value_size % SB_UNIT_COLUMNS == 0;
  const int64_t keys = int64_t{how.num_key_heads} * how.key_size, values = int64_t{how.num_heads} * how.value_size;
  const bool is_known = how.rule == SB_GATED_DELTA || how.rule == SB_SELECTIVE;
  return is_known && has_heads && has_sizes && has_columns(src, how.query, keys) && has_columns(src, how.key, keys) &&
         has_columns(src, how.value, values) && has_columns(dst, 0, values) &&
         has_columns(gate, how.step, how.num_heads) &&
         (how.rule == SB_SELECTIVE || has_columns(gate, how.strength, how.num_heads));
}

bool is_valid_gated_norm(const SbOp& op, const SbBuffer& src, const SbBuffer& dst, const SbBuffer& gate) {
  const int64_t width = int64_t{op.n} * op.num_heads;
  const bool is_known = op.mode >= SB_GATED_AFTER && op.mode <= SB_NORMED_BY_SQUARES;
  const bool gives_squares = op.mode == SB_GATED_SQUARES, gives_floats = dst.row == SB_FLOATS || dst.row == SB_SHARED;
  const bool has_groups = op.n > 0 && op.n % SB_UNIT_COLUMNS == 0 && op.num_heads > 0 && src.width == width;
  const int64_t num_gates = op.mode == SB_NORMED_BY_SQUARES ? op.num_heads : width;
  return is_known && has_groups && has_columns(src, 0, width) && has_columns(gate, op.column, num_gates) &&
         dst.width == (gives_squares ? op.num_heads : width) && gives_floats == gives_squares;
}

}  // namespace

bool is_valid_recurrent(const SbOp& op, const SbBuffer* buffers) {
  const SbBuffer &src = buffers[op.src], &dst = buffers[op.dst], &gate = buffers[op.gate];
  const bool is_apart = op.src != op.dst;
  if (op.kind == SB_KEEP) return has_columns(src, 0, src.width);
  if (op.kind == SB_CONVOLVE)
    return is_apart && is_valid(*static_cast<const SbConvolution*>(op.weight), src, dst) && units_of(op).is_valid();
  if (op.kind == SB_SCAN)
    return is_apart && op.gate != op.dst && is_valid(*static_cast<const SbScan*>(op.weight), src, dst, gate) &&
           units_of(op).is_valid();
  return op.kind != SB_GATED_NORM || (is_apart && is_valid_gated_norm(op, src, dst, gate));
}

}  // namespace sb
