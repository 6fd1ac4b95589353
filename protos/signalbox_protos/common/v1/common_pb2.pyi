from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelInfo(_message.Message):
    __slots__ = ("name", "architecture", "dtype", "vocab_size", "max_model_len", "eos_token_ids", "tokenizer_sha256", "sampling_defaults", "fingerprint", "numerics", "adapters", "pooling", "started_as")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    STARTED_AS_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokenizer_sha256: str
    sampling_defaults: SamplingDefaults
    fingerprint: str
    numerics: Numerics
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    pooling: PoolingModel
    started_as: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., tokenizer_sha256: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., fingerprint: _Optional[str] = ..., numerics: _Optional[_Union[Numerics, _Mapping]] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., pooling: _Optional[_Union[PoolingModel, _Mapping]] = ..., started_as: _Optional[_Iterable[str]] = ...) -> None: ...

class PoolingModel(_message.Message):
    __slots__ = ("task", "num_outputs", "is_bidirectional", "reads_all_tokens", "activation", "dimensions", "num_token_outputs")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    IS_BIDIRECTIONAL_FIELD_NUMBER: _ClassVar[int]
    READS_ALL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKEN_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    task: str
    num_outputs: int
    is_bidirectional: bool
    reads_all_tokens: bool
    activation: str
    dimensions: _containers.RepeatedScalarFieldContainer[int]
    num_token_outputs: int
    def __init__(self, task: _Optional[str] = ..., num_outputs: _Optional[int] = ..., is_bidirectional: _Optional[bool] = ..., reads_all_tokens: _Optional[bool] = ..., activation: _Optional[str] = ..., dimensions: _Optional[_Iterable[int]] = ..., num_token_outputs: _Optional[int] = ...) -> None: ...

class PoolingParams(_message.Message):
    __slots__ = ("num_first_segment_tokens", "num_skipped_tokens", "is_per_token")
    NUM_FIRST_SEGMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SKIPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    num_first_segment_tokens: int
    num_skipped_tokens: int
    is_per_token: bool
    def __init__(self, num_first_segment_tokens: _Optional[int] = ..., num_skipped_tokens: _Optional[int] = ..., is_per_token: _Optional[bool] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "sha256", "path", "loaded_at_ns", "is_leaving")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    path: str
    loaded_at_ns: int
    is_leaving: bool
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., path: _Optional[str] = ..., loaded_at_ns: _Optional[int] = ..., is_leaving: _Optional[bool] = ...) -> None: ...

class Numerics(_message.Message):
    __slots__ = ("factors", "kernels", "kv_cache_dtype")
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    factors: str
    kernels: str
    kv_cache_dtype: str
    def __init__(self, factors: _Optional[str] = ..., kernels: _Optional[str] = ..., kv_cache_dtype: _Optional[str] = ...) -> None: ...

class SamplingDefaults(_message.Message):
    __slots__ = ("model", "override")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    model: DefaultParams
    override: DefaultParams
    def __init__(self, model: _Optional[_Union[DefaultParams, _Mapping]] = ..., override: _Optional[_Union[DefaultParams, _Mapping]] = ...) -> None: ...

class DefaultParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class WorkerCapacity(_message.Message):
    __slots__ = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "block_bytes", "max_num_seqs", "max_num_batched_tokens", "copy_bytes_per_second", "prefill_tokens_per_second", "tensor_parallel_size", "grammar_bytes", "max_steps_in_flight", "pipeline_parallel_size", "ranks", "store", "block_format", "groups", "max_draft_tokens", "arithmetic")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FORMAT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    copy_bytes_per_second: int
    prefill_tokens_per_second: int
    tensor_parallel_size: int
    grammar_bytes: int
    max_steps_in_flight: int
    pipeline_parallel_size: int
    ranks: _containers.RepeatedCompositeFieldContainer[WorkerRank]
    store: BlockStore
    block_format: str
    groups: _containers.RepeatedCompositeFieldContainer[CacheGroup]
    max_draft_tokens: int
    arithmetic: str
    def __init__(self, block_size: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., copy_bytes_per_second: _Optional[int] = ..., prefill_tokens_per_second: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., grammar_bytes: _Optional[int] = ..., max_steps_in_flight: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[WorkerRank, _Mapping]]] = ..., store: _Optional[_Union[BlockStore, _Mapping]] = ..., block_format: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[CacheGroup, _Mapping]]] = ..., max_draft_tokens: _Optional[int] = ..., arithmetic: _Optional[str] = ...) -> None: ...

class CacheGroup(_message.Message):
    __slots__ = ("kind", "window", "layers", "state_blocks")
    KIND_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    STATE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    window: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    state_blocks: int
    def __init__(self, kind: _Optional[str] = ..., window: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., state_blocks: _Optional[int] = ...) -> None: ...

class BlockStore(_message.Message):
    __slots__ = ("kind", "read_bytes_per_second", "max_write_bytes_per_second", "clears")
    KIND_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_WRITE_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLEARS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    read_bytes_per_second: int
    max_write_bytes_per_second: int
    clears: _containers.RepeatedCompositeFieldContainer[ClearMark]
    def __init__(self, kind: _Optional[str] = ..., read_bytes_per_second: _Optional[int] = ..., max_write_bytes_per_second: _Optional[int] = ..., clears: _Optional[_Iterable[_Union[ClearMark, _Mapping]]] = ...) -> None: ...

class ClearMark(_message.Message):
    __slots__ = ("issuer", "number", "catches_up")
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CATCHES_UP_FIELD_NUMBER: _ClassVar[int]
    issuer: bytes
    number: int
    catches_up: bool
    def __init__(self, issuer: _Optional[bytes] = ..., number: _Optional[int] = ..., catches_up: _Optional[bool] = ...) -> None: ...

class WorkerRank(_message.Message):
    __slots__ = ("rank", "stage", "tensor_parallel_rank", "host", "address", "first_layer", "num_layers")
    RANK_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_RANK_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    stage: int
    tensor_parallel_rank: int
    host: str
    address: str
    first_layer: int
    num_layers: int
    def __init__(self, rank: _Optional[int] = ..., stage: _Optional[int] = ..., tensor_parallel_rank: _Optional[int] = ..., host: _Optional[str] = ..., address: _Optional[str] = ..., first_layer: _Optional[int] = ..., num_layers: _Optional[int] = ...) -> None: ...

class StageTimings(_message.Message):
    __slots__ = ("queue_ns", "wait_ns", "forward_ns", "collective_ns", "boundary_bytes", "boundary_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_NS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    wait_ns: int
    forward_ns: int
    collective_ns: int
    boundary_bytes: int
    boundary_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., wait_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., collective_ns: _Optional[int] = ..., boundary_bytes: _Optional[int] = ..., boundary_ns: _Optional[int] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "stop_token_ids", "num_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "typical_p", "logit_bias_token_ids", "logit_biases", "allowed_token_ids", "bad_words", "num_prompt_logprobs", "structured_output", "logprob_token_ids", "grammar_cost", "constraint_scope")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_COST_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_SCOPE_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    min_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    typical_p: float
    logit_bias_token_ids: bytes
    logit_biases: bytes
    allowed_token_ids: bytes
    bad_words: _containers.RepeatedCompositeFieldContainer[TokenRun]
    num_prompt_logprobs: int
    structured_output: StructuredOutput
    logprob_token_ids: bytes
    grammar_cost: GrammarCost
    constraint_scope: ConstraintScope
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., typical_p: _Optional[float] = ..., logit_bias_token_ids: _Optional[bytes] = ..., logit_biases: _Optional[bytes] = ..., allowed_token_ids: _Optional[bytes] = ..., bad_words: _Optional[_Iterable[_Union[TokenRun, _Mapping]]] = ..., num_prompt_logprobs: _Optional[int] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., logprob_token_ids: _Optional[bytes] = ..., grammar_cost: _Optional[_Union[GrammarCost, _Mapping]] = ..., constraint_scope: _Optional[_Union[ConstraintScope, _Mapping]] = ...) -> None: ...

class ConstraintScope(_message.Message):
    __slots__ = ("is_open", "opening_token_ids", "closing_token_ids", "max_reasoning_tokens", "marker_token_ids", "is_repeated", "is_required", "is_leading", "reasoning_token_ids")
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    OPENING_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CLOSING_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MARKER_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_REPEATED_FIELD_NUMBER: _ClassVar[int]
    IS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    IS_LEADING_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    is_open: bool
    opening_token_ids: _containers.RepeatedScalarFieldContainer[int]
    closing_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_reasoning_tokens: int
    marker_token_ids: _containers.RepeatedScalarFieldContainer[int]
    is_repeated: bool
    is_required: bool
    is_leading: bool
    reasoning_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, is_open: _Optional[bool] = ..., opening_token_ids: _Optional[_Iterable[int]] = ..., closing_token_ids: _Optional[_Iterable[int]] = ..., max_reasoning_tokens: _Optional[int] = ..., marker_token_ids: _Optional[_Iterable[int]] = ..., is_repeated: _Optional[bool] = ..., is_required: _Optional[bool] = ..., is_leading: _Optional[bool] = ..., reasoning_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenRun(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "grammar", "choice", "rules")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: JsonObject
    regex: str
    grammar: str
    choice: Choice
    rules: str
    def __init__(self, json_schema: _Optional[str] = ..., json_object: _Optional[_Union[JsonObject, _Mapping]] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ..., rules: _Optional[str] = ...) -> None: ...

class JsonObject(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Choice(_message.Message):
    __slots__ = ("choices",)
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...

class GrammarCost(_message.Message):
    __slots__ = ("cpu_ns", "peak_bytes")
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_ns: int
    peak_bytes: int
    def __init__(self, cpu_ns: _Optional[int] = ..., peak_bytes: _Optional[int] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("row", "logprob", "rank", "top_token_ids", "top_logprobs")
    ROW_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    row: int
    logprob: float
    rank: int
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, row: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class BlockMoves(_message.Message):
    __slots__ = ("swap_out", "swap_in", "copy")
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    swap_out: BlockMapping
    swap_in: BlockMapping
    copy: BlockMapping
    def __init__(self, swap_out: _Optional[_Union[BlockMapping, _Mapping]] = ..., swap_in: _Optional[_Union[BlockMapping, _Mapping]] = ..., copy: _Optional[_Union[BlockMapping, _Mapping]] = ...) -> None: ...

class BlockMapping(_message.Message):
    __slots__ = ("src", "dst")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    src: bytes
    dst: bytes
    def __init__(self, src: _Optional[bytes] = ..., dst: _Optional[bytes] = ...) -> None: ...
