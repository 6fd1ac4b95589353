// Products, attention, scans and draws of one instruction set against plain loops; needs no Python.
//
//   check_kernels COMMON_LIBRARY              prints the numbers of the sets that the machine has
//   check_kernels COMMON_LIBRARY SET NUMBER   checks the kernels of a set's library
#include "harness.h"

namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place of 1

// Two sums of `depth` products, each rounded. `stored` is the weight's element type.
void check_products(int32_t element, int32_t stored) {
  const int32_t storage = stored == SB_F32 ? SB_STORED_F32 : SB_STORED_BF16;
  for (const auto& [n, k] : {std::pair{1, 1}, {33, 50}, {70, 96}}) {
    const Elements weight(stored, random_numbers(n * k));
    char* packed = aligned(CALL(sb_packed_bytes)(storage, n, k, 0));
    const int64_t row_bytes = k * (stored == SB_F32 ? 4 : 2);
    CALL(sb_pack)(storage, weight.bytes.data(), row_bytes, n, k, 0, packed);
    SbOp op{};
    op.kind = SB_LINEAR;
    op.dst = 1;
    op.n = n;
    op.weight = packed;
    op.storage = storage;
    Run run(make_shape(element), {op}, {{k, SB_ELEMENTS}, {n, SB_FLOATS}});
    for (const int rows : {1, 2, 5, 13}) {
      const Elements x(element, random_numbers(rows * k));
      const size_t size = x.bytes.size() / x.values.size(), width = sb::round_up(k, sb::kPanel);
      char* left = run.buffer(0, 16);
      for (int r = 0; r < rows; ++r)
        std::memcpy(left + r * width * size, x.bytes.data() + r * k * size, k * size);
      run.step(0, rows);
      const auto* out = reinterpret_cast<float*>(run.buffer(1, 16));
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < n; ++c) {
          double sum = 0, terms = 0;
          for (int i = 0; i < k; ++i) {
            const double term = static_cast<double>(x.values[r * k + i]) * weight.values[c * k + i];
            sum += term;
            terms += std::fabs(term);
          }
          check_near("product", out[r * sb::round_up(n, sb::kPanel) + c], sum,
                     2 * (k + 2) * kUnit * terms);
        }
    }
    std::free(packed);
  }
}

// A type of ggml's blocks of 32 values.
struct Blocks {
  const char* name;
  int32_t type;
  int bytes;
  float (*value)(const uint8_t* block, int i);
};

float half(const uint8_t* p) {  // a normal one
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  const float x = std::ldexp(1.0f + (h & 0x3ff) / 1024.0f, (h >> 10 & 31) - 15);
  return h & 0x8000 ? -x : x;
}

int nibble(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

const Blocks kBlocks[] = {
    {"Q4_0", 2, 18, [](const uint8_t* b, int i) { return half(b) * (nibble(b + 2, i) - 8); }},
    {"Q4_1", 3, 20,
     [](const uint8_t* b, int i) { return half(b) * nibble(b + 4, i) + half(b + 2); }},
    {"Q5_0", 6, 22,
     [](const uint8_t* b, int i) {
       return half(b) * ((nibble(b + 6, i) | (b[2 + i / 8] >> i % 8 & 1) << 4) - 16);
     }},
    {"Q8_0", 8, 34,
     [](const uint8_t* b, int i) { return half(b) * static_cast<int8_t>(b[2 + i]); }},
};

std::vector<uint8_t> random_blocks(const Blocks& kind, int64_t count) {
  std::vector<uint8_t> made(static_cast<size_t>(count * kind.bytes));
  for (uint8_t& byte : made) byte = static_cast<uint8_t>(128.0f + 128.0f * random_number());
  for (int64_t i = 0; i < count; ++i) {
    uint8_t* block = made.data() + i * kind.bytes;
    block[1] = 0x20 | (block[1] & 0x8f);  // scale and minimum: some hundredths
    if (kind.type == 3) block[3] = 0x20 | (block[3] & 0x8f);
  }
  return made;
}

// Few rows, and as many as matrix registers take. A row is coded in 8 or 16 bits before; sums within a
// group of 32 are exact, and of the groups' `scale`, `minimum` and sum some ten operations are
// rounded. In float32 each term of the sum is.
void check_block_products(const Blocks& kind, SbRow row) {
  constexpr int n = 70, groups = 3, k = groups * sb::kGroup;
  const std::vector<uint8_t> blocks = random_blocks(kind, n * groups);
  char* packed = aligned(CALL(sb_packed_bytes)(kind.type, n, k, 0));
  CALL(sb_pack)(kind.type, blocks.data(), groups * kind.bytes, n, k, 0, packed);
  SbOp code{}, product{};
  code.kind = SB_CODE;
  code.dst = 1;
  product.kind = SB_LINEAR;
  product.src = row != SB_ELEMENTS;
  product.dst = 2;
  product.n = n;
  product.weight = packed;
  product.storage = kind.type;
  const SbRow coded_row = row == SB_ELEMENTS ? SB_CODES : row;
  const int64_t group_bytes = sb::coded_group_bytes(sb::code_bytes(coded_row));
  Run run(make_shape(SB_F32), {code, product}, {{k, SB_ELEMENTS}, {k, coded_row}, {n, SB_FLOATS}});
  for (const int rows : {5, 19}) {
    const std::vector<float> x = random_numbers(rows * k);
    std::memcpy(run.buffer(0, 32), x.data(), 4 * x.size());
    run.step(0, rows);
    const char* coded = run.buffer(1, 32);
    const auto* out = reinterpret_cast<float*>(run.buffer(2, 32));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < n; ++c) {
        double sum = 0, terms = 0;
        for (int i = 0; i < k; ++i) {
          const auto& group = *reinterpret_cast<const sb::WideGroup*>(coded + (r * groups + i / sb::kGroup) * group_bytes);
          const int place = i % sb::kGroup, high = group.codes[place];
          const double code = double{group.scale} * (row == SB_WIDE_CODES ? 256 * high + group.low[place] : high);
          check_near("code", code, x[r * k + i], 0.52 * group.scale);
          const double left = row != SB_ELEMENTS ? code : x[r * k + i];
          const uint8_t* block = blocks.data() + (c * groups + i / sb::kGroup) * kind.bytes;
          const double term = left * kind.value(block, i % sb::kGroup);
          sum += term;
          terms += std::fabs(left) * 32 * std::fabs(half(block)) + std::fabs(term);
        }
        const int roundings = row != SB_ELEMENTS ? 16 : k + 2;
        const float result = out[r * sb::round_up(n, sb::kPanel) + c];
        check_near(kind.name, result, sum, roundings * kUnit * terms);
      }
  }
  std::free(packed);
}

// Rotation, cache and attention: a prompt of 37 tokens in two parts, then single tokens.
void check_attention(int32_t element) {
  constexpr int size = 16, heads = 2, tokens = 40, width = (heads + 2) * size;
  SbShape shape = make_shape(element);
  shape.num_heads = heads;
  shape.scale = 0.25f;
  std::vector<float> angles(64 * size);
  for (int t = 0; t < 64; ++t)
    for (int i = 0; i < size / 2; ++i) {
      const double angle = t * std::pow(10000.0, -2.0 * i / size);
      angles[t * size + i] = static_cast<float>(std::cos(angle));
      angles[t * size + size / 2 + i] = static_cast<float>(std::sin(angle));
    }
  shape.rotary = angles.data();
  SbOp rotate{}, attend{};
  rotate.kind = SB_ROTATE;
  rotate.n = size;
  rotate.dst = 1;
  attend.kind = SB_ATTEND;
  attend.src = 1;
  attend.dst = 2;
  Run run(shape, {rotate, attend},
          {{width, SB_FLOATS}, {heads * size, SB_ELEMENTS}, {heads * size, SB_ELEMENTS}});
  constexpr int64_t block_bytes = 2 * 16 * size * 4;
  char* pool = aligned(8 * block_bytes);
  CALL(sb_program_bind)(run.program, pool, block_bytes);
  std::vector<float> rows = random_numbers(tokens * width), turned = rows;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < heads + 1; ++h)
      for (int i = 0; i < size / 2; ++i) {
        const float* x = rows.data() + t * width + h * size + i;
        float* y = turned.data() + t * width + h * size + i;
        const float* cosine = angles.data() + t * size + i;
        y[0] = x[0] * cosine[0] - x[size / 2] * cosine[size / 2];
        y[size / 2] = x[size / 2] * cosine[0] + x[0] * cosine[size / 2];
      }
  // Scores are at most 0.25 * 16 * 2: an error of theirs is one of the same size of a weight. In
  // bfloat16 queries, keys, values, weights and results are rounded to 8 bits.
  const double allowed = element == SB_F32 ? 1e-4 : 6e-2;
  int past = 0;
  for (const int count : {20, 17, 1, 1, 1}) {
    std::memcpy(run.buffer(0, 48), rows.data() + past * width, 4 * width * count);
    run.step(past, count);
    const char* out = run.buffer(2, 48);
    for (int t = past; t < past + count; ++t)
      for (int h = 0; h < heads; ++h) {
        double total = 0, sums[size] = {};
        for (int j = 0; j <= t; ++j) {
          double score = 0;
          for (int i = 0; i < size; ++i)
            score += static_cast<double>(turned[t * width + h * size + i]) *
                     turned[j * width + heads * size + i];
          const double weight = std::exp(0.25 * score);
          total += weight;
          for (int i = 0; i < size; ++i) sums[i] += weight * rows[j * width + (heads + 1) * size + i];
        }
        for (int i = 0; i < size; ++i) {
          const int at = ((t - past) * heads + h) * size + i;
          float actual;
          uint16_t narrow;
          std::memcpy(&actual, out + 4 * at, sizeof actual);
          std::memcpy(&narrow, out + 2 * at, sizeof narrow);
          check_near("attention", element == SB_F32 ? actual : of_bfloat16(narrow), sums[i] / total,
                     allowed);
        }
      }
    past += count;
  }
  std::free(pool);
}

// A convolution and a scan of its channels, in steps as attention has them; a page holds two units of a scan.
void check_recurrence(int32_t rule) {
  constexpr int heads = 2, keys = 32, values = 48, tokens = 40, channels = 2 * keys + heads * values;
  const std::vector<float> weights = random_numbers(4 * channels), rates{-0.5f, -2.0f}, biases{0.1f, 0.3f};
  constexpr int32_t page_bytes = 2 * 64 * keys;
  SbConvolution convolution{channels, 4, 0, -1, -1, SB_SILU, weights.data(), nullptr, {0, 0, page_bytes}};
  SbScan scan{rule, heads, 1, 0, keys, values, 0, keys, 2 * keys, 0, heads, 0.05f, 2.0f,
              rates.data(), biases.data(), nullptr, {1, 0, page_bytes}};
  SbOp convolve{}, pass{};
  convolve.kind = SB_CONVOLVE;
  convolve.dst = 1;
  convolve.weight = &convolution;
  pass.kind = SB_SCAN;
  pass.src = 1;
  pass.dst = 2;
  pass.gate = 3;
  pass.weight = &scan;
  Run run(make_shape(SB_F32), {convolve, pass},
          {{channels, SB_FLOATS}, {channels, SB_FLOATS}, {heads * values, SB_FLOATS}, {2 * heads, SB_FLOATS}});
  char* pool = aligned(8 * page_bytes);
  CALL(sb_program_bind)(run.program, pool, page_bytes);
  const std::vector<float> rows = random_numbers(tokens * channels), gates = random_numbers(tokens * 2 * heads);
  std::vector<double> state(heads * keys * values), summed(channels);
  int past = 0;
  for (const int count : {20, 17, 1, 1, 1}) {
    const int64_t width = sb::round_up(2 * heads, sb::kPanel);
    std::memcpy(run.buffer(0, 48), rows.data() + past * channels, 4 * channels * count);
    for (int t = 0; t < count; ++t)
      std::memcpy(run.buffer(3, 48) + 4 * t * width, gates.data() + (past + t) * 2 * heads, 8 * heads);
    run.step(past, count);
    const auto* out = reinterpret_cast<float*>(run.buffer(2, 48));
    for (int t = past; t < past + count; ++t) {
      for (int c = 0; c < channels; ++c) {
        double sum = 0;
        for (int i = std::max(0, 3 - t); i < 4; ++i)
          sum += static_cast<double>(weights[i * channels + c]) * rows[(t - 3 + i) * channels + c];
        summed[c] = sum / (1 + std::exp(-sum));
      }
      const auto length = [&](int first) {
        double squares = 1e-6;
        for (int j = 0; j < keys; ++j) squares += summed[first + j] * summed[first + j];
        return rule == SB_GATED_DELTA ? std::sqrt(squares) : 1.0;
      };
      const double of_query = length(0) * (rule == SB_GATED_DELTA ? std::sqrt(double{keys}) : 1.0), of_key = length(keys);
      for (int h = 0; h < heads; ++h) {
        const float* gate = gates.data() + t * 2 * heads + h;
        const double step = std::fmin(2.0, std::fmax(0.05, std::log1p(std::exp(double{gate[0]} + biases[h]))));
        const double kept = std::exp(step * rates[h]), strength = 1 / (1 + std::exp(-double{gate[heads]}));
        for (int v = 0; v < values; ++v) {
          double* s = state.data() + (h * values + v) * keys;
          double known = 0, found = 0;
          for (int j = 0; j < keys; ++j) known += kept * s[j] * summed[keys + j] / of_key;
          const double value = summed[2 * keys + h * values + v];
          const double change = rule == SB_GATED_DELTA ? strength * (value - known) : step * value;
          for (int j = 0; j < keys; ++j) {
            s[j] = kept * s[j] + change * summed[keys + j] / of_key;
            found += s[j] * summed[j] / of_query;
          }
          // Sums of 32 products over some 40 tokens, of magnitude 1.
          check_near("scan", out[(t - past) * heads * values + h * values + v], found, 1e-4);
        }
      }
    }
    past += count;
  }
  std::free(pool);
}

// The race's number in (0, 1) for a token; see sampling/race.h.
double number_of(uint64_t key, int token) {
  uint32_t x = static_cast<uint32_t>(token) * 0x9e3779b1u + static_cast<uint32_t>(key);
  x = (x ^ x >> 16) * 0x21f0aaadu;
  x = ((x ^ x >> 15) + static_cast<uint32_t>(key >> 32)) * 0x735a2d97u;
  x = (x ^ x >> 15) * 0x846ca68bu;
  x ^= x >> 16;
  return std::fmax(0x1p-33, static_cast<float>(x) * 0x1p-32f);
}

void check_draws() {
  constexpr int rows = 64, vocab = 1031;
  std::vector<float> logits = random_numbers(rows * vocab), logprobs(rows);
  for (float& x : logits) x *= 8;
  std::vector<int64_t> row_of(rows), zeros(rows), reported(rows);
  std::vector<uint64_t> keys(rows);
  std::vector<float> temperature(rows), ones(rows, 1.0f), none(rows);
  std::vector<int32_t> drawn(rows), ranks(rows);
  std::vector<uint8_t> status(rows);
  for (int r = 0; r < rows; ++r) {
    row_of[r] = r;
    keys[r] = static_cast<uint64_t>(r) * 0x9e3779b97f4a7c15u;
    temperature[r] = r % 2 ? 1.0f : 0.0f;
  }
  SbDraws draws{};
  draws.num_rows = rows;
  draws.vocab_size = vocab;
  draws.logits = logits.data();
  draws.logits_row = row_of.data();
  draws.keys = keys.data();
  draws.temperature = temperature.data();
  draws.top_p = draws.typical_p = ones.data();
  draws.min_p = none.data();
  draws.top_k = zeros.data();
  draws.num_logprobs = reported.data();
  draws.drawn = drawn.data();
  draws.status = status.data();
  draws.logprob = logprobs.data();
  draws.rank = ranks.data();
  void* sampler = CALL(sb_sampler_new)(nullptr, 2, isa);
  if (!sampler || CALL(sb_sampler_run)(sampler, &draws)) stop("no sampler");
  CALL(sb_sampler_free)(sampler);
  for (int r = 0; r < rows; ++r) {
    const float* row = logits.data() + r * vocab;
    double mass = 0, best = -INFINITY, actual = 0;
    for (int t = 0; t < vocab; ++t) {
      const double weight = std::exp(static_cast<double>(row[t]));
      const double score = r % 2 ? weight / -std::log1p(-number_of(keys[r], t)) : weight;
      mass += weight;
      if (score > best) best = score;
      if (t == drawn[r]) actual = score;
    }
    check(actual >= best * (1 - 1e-5), "drawn score", actual, best);
    check_near("log probability", logprobs[r], row[drawn[r]] - std::log(mass), 1e-4);
  }
}

}  // namespace

int main(int argc, char** argv) {
  common = open_library(argv[1]);
  if (argc < 4) {
    for (int32_t number = 0; number < SB_NUM_ISAS; ++number)
      if (CALL(sb_machine_has)(number)) std::printf("%d\n", number);
    return 0;
  }
  isa = std::atoi(argv[3]);
  // Where a set needs the kernel's permission (AMX), this asks for it.
  if (!CALL(sb_machine_has)(isa)) stop("the machine lacks the set");
  const auto table = reinterpret_cast<const void* (*)()>(dlsym(open_library(argv[2]), "sb_kernel_table"));
  CALL(sb_use_kernels)(isa, table());
  check_products(SB_F32, SB_F32);
  check_products(SB_F32, SB_BF16);
  check_attention(SB_F32);
  if (CALL(sb_multiplies_bfloat16)(isa)) {
    check_products(SB_BF16, SB_BF16);
    check_attention(SB_BF16);
  }
  for (const Blocks& kind : kBlocks)
    for (const SbRow row : {SB_ELEMENTS, SB_CODES, SB_WIDE_CODES}) check_block_products(kind, row);
  for (const int32_t rule : {SB_GATED_DELTA, SB_SELECTIVE}) check_recurrence(rule);
  check_draws();
  std::printf("%d checks passed, %d failed\n", num_passed, num_failed);
  return num_failed ? 1 : 0;
}
