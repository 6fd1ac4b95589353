from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModelInfo(_message.Message):
    __slots__ = ("name", "architecture", "dtype", "vocab_size", "max_model_len", "eos_token_ids", "tokenizer_sha256", "sampling_defaults", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    tokenizer_sha256: str
    sampling_defaults: SamplingDefaults
    fingerprint: str
    def __init__(self, name: _Optional[str] = ..., architecture: _Optional[str] = ..., dtype: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_model_len: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., tokenizer_sha256: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., fingerprint: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("block_size", "num_gpu_blocks", "num_cpu_blocks", "block_bytes", "max_num_seqs", "max_num_batched_tokens", "copy_bytes_per_second", "prefill_tokens_per_second", "tensor_parallel_size", "grammar_bytes", "max_steps_in_flight")
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
    def __init__(self, block_size: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., copy_bytes_per_second: _Optional[int] = ..., prefill_tokens_per_second: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., grammar_bytes: _Optional[int] = ..., max_steps_in_flight: _Optional[int] = ...) -> None: ...

class GetWorkerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetWorkerInfoResponse(_message.Message):
    __slots__ = ("epoch", "model", "capacity", "memory")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    model: ModelInfo
    capacity: WorkerCapacity
    memory: MemoryReport
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[_Union[ModelInfo, _Mapping]] = ..., capacity: _Optional[_Union[WorkerCapacity, _Mapping]] = ..., memory: _Optional[_Union[MemoryReport, _Mapping]] = ...) -> None: ...

class MemoryReport(_message.Message):
    __slots__ = ("weights_bytes", "kv_bytes", "swap_bytes", "activations_bytes", "used_bytes", "unused_bytes", "total_bytes")
    WEIGHTS_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    SWAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTIVATIONS_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNUSED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    weights_bytes: int
    kv_bytes: int
    swap_bytes: int
    activations_bytes: int
    used_bytes: int
    unused_bytes: int
    total_bytes: int
    def __init__(self, weights_bytes: _Optional[int] = ..., kv_bytes: _Optional[int] = ..., swap_bytes: _Optional[int] = ..., activations_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., unused_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("duration_ns", "record_shapes", "with_stack")
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    RECORD_SHAPES_FIELD_NUMBER: _ClassVar[int]
    WITH_STACK_FIELD_NUMBER: _ClassVar[int]
    duration_ns: int
    record_shapes: bool
    with_stack: bool
    def __init__(self, duration_ns: _Optional[int] = ..., record_shapes: _Optional[bool] = ..., with_stack: _Optional[bool] = ...) -> None: ...

class ProfileResponse(_message.Message):
    __slots__ = ("num_steps", "kernel_ns", "chunk")
    class KernelNsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    KERNEL_NS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    num_steps: int
    kernel_ns: _containers.ScalarMap[str, int]
    chunk: bytes
    def __init__(self, num_steps: _Optional[int] = ..., kernel_ns: _Optional[_Mapping[str, int]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class InitCacheEngineRequest(_message.Message):
    __slots__ = ("epoch", "num_gpu_blocks", "num_cpu_blocks")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    def __init__(self, epoch: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ...) -> None: ...

class InitCacheEngineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrepareGrammarRequest(_message.Message):
    __slots__ = ("epoch", "structured_output", "cost", "forgotten")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    structured_output: StructuredOutput
    cost: GrammarCost
    forgotten: _containers.RepeatedCompositeFieldContainer[StructuredOutput]
    def __init__(self, epoch: _Optional[int] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., cost: _Optional[_Union[GrammarCost, _Mapping]] = ..., forgotten: _Optional[_Iterable[_Union[StructuredOutput, _Mapping]]] = ...) -> None: ...

class PrepareGrammarResponse(_message.Message):
    __slots__ = ("fault",)
    FAULT_FIELD_NUMBER: _ClassVar[int]
    fault: str
    def __init__(self, fault: _Optional[str] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("file_name", "chunk")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    chunk: bytes
    def __init__(self, file_name: _Optional[str] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "stop_token_ids", "num_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "typical_p", "logit_bias_token_ids", "logit_biases", "allowed_token_ids", "bad_words", "num_prompt_logprobs", "structured_output", "logprob_token_ids", "grammar_cost")
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
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., num_logprobs: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., typical_p: _Optional[float] = ..., logit_bias_token_ids: _Optional[bytes] = ..., logit_biases: _Optional[bytes] = ..., allowed_token_ids: _Optional[bytes] = ..., bad_words: _Optional[_Iterable[_Union[TokenRun, _Mapping]]] = ..., num_prompt_logprobs: _Optional[int] = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., logprob_token_ids: _Optional[bytes] = ..., grammar_cost: _Optional[_Union[GrammarCost, _Mapping]] = ...) -> None: ...

class GrammarCost(_message.Message):
    __slots__ = ("cpu_ns", "peak_bytes")
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    cpu_ns: int
    peak_bytes: int
    def __init__(self, cpu_ns: _Optional[int] = ..., peak_bytes: _Optional[int] = ...) -> None: ...

class TokenRun(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    def __init__(self, token_ids: _Optional[bytes] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ("json_schema", "json_object", "regex", "grammar", "choice")
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    json_schema: str
    json_object: JsonObject
    regex: str
    grammar: str
    choice: Choice
    def __init__(self, json_schema: _Optional[str] = ..., json_object: _Optional[_Union[JsonObject, _Mapping]] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ...) -> None: ...

class JsonObject(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Choice(_message.Message):
    __slots__ = ("choices",)
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, choices: _Optional[_Iterable[str]] = ...) -> None: ...

class SequenceGroupMetadata(_message.Message):
    __slots__ = ("request_id", "sampling_params", "num_prompt_tokens", "sequences")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sampling_params: SamplingParams
    num_prompt_tokens: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceMetadata]
    def __init__(self, request_id: _Optional[str] = ..., sampling_params: _Optional[_Union[SamplingParams, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceMetadata, _Mapping]]] = ...) -> None: ...

class SequenceMetadata(_message.Message):
    __slots__ = ("seq_id", "branch", "token_ids", "num_computed_tokens", "num_new_tokens", "block_table", "num_samples")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    branch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_computed_tokens: int
    num_new_tokens: int
    block_table: _containers.RepeatedScalarFieldContainer[int]
    num_samples: int
    def __init__(self, seq_id: _Optional[int] = ..., branch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_computed_tokens: _Optional[int] = ..., num_new_tokens: _Optional[int] = ..., block_table: _Optional[_Iterable[int]] = ..., num_samples: _Optional[int] = ...) -> None: ...

class RunningSequences(_message.Message):
    __slots__ = ("seq_ids", "num_new_tokens")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    num_new_tokens: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., num_new_tokens: _Optional[bytes] = ...) -> None: ...

class BlockTablePatches(_message.Message):
    __slots__ = ("seq_ids", "first_index", "num_blocks", "blocks")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    first_index: bytes
    num_blocks: bytes
    blocks: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., first_index: _Optional[bytes] = ..., num_blocks: _Optional[bytes] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class Forks(_message.Message):
    __slots__ = ("parent_seq_ids", "child_seq_ids", "branches", "token_ids")
    PARENT_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    CHILD_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    parent_seq_ids: bytes
    child_seq_ids: bytes
    branches: bytes
    token_ids: bytes
    def __init__(self, parent_seq_ids: _Optional[bytes] = ..., child_seq_ids: _Optional[bytes] = ..., branches: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ...) -> None: ...

class BlockMapping(_message.Message):
    __slots__ = ("src", "dst")
    SRC_FIELD_NUMBER: _ClassVar[int]
    DST_FIELD_NUMBER: _ClassVar[int]
    src: bytes
    dst: bytes
    def __init__(self, src: _Optional[bytes] = ..., dst: _Optional[bytes] = ...) -> None: ...

class BlockMoves(_message.Message):
    __slots__ = ("swap_out", "swap_in", "copy")
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    swap_out: BlockMapping
    swap_in: BlockMapping
    copy: BlockMapping
    def __init__(self, swap_out: _Optional[_Union[BlockMapping, _Mapping]] = ..., swap_in: _Optional[_Union[BlockMapping, _Mapping]] = ..., copy: _Optional[_Union[BlockMapping, _Mapping]] = ...) -> None: ...

class ExecuteModelRequest(_message.Message):
    __slots__ = ("epoch", "step_id", "finished_seq_ids", "new_groups", "running", "block_table_patches", "trace_context", "forks", "block_moves")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_PATCHES_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MOVES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    finished_seq_ids: bytes
    new_groups: _containers.RepeatedCompositeFieldContainer[SequenceGroupMetadata]
    running: RunningSequences
    block_table_patches: BlockTablePatches
    trace_context: TraceContext
    forks: Forks
    block_moves: BlockMoves
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., finished_seq_ids: _Optional[bytes] = ..., new_groups: _Optional[_Iterable[_Union[SequenceGroupMetadata, _Mapping]]] = ..., running: _Optional[_Union[RunningSequences, _Mapping]] = ..., block_table_patches: _Optional[_Union[BlockTablePatches, _Mapping]] = ..., trace_context: _Optional[_Union[TraceContext, _Mapping]] = ..., forks: _Optional[_Union[Forks, _Mapping]] = ..., block_moves: _Optional[_Union[BlockMoves, _Mapping]] = ...) -> None: ...

class ExecuteModelResponse(_message.Message):
    __slots__ = ("epoch", "step_id", "seq_ids", "branches", "num_tokens", "token_ids", "logprobs", "errors", "timings", "prompt_logprobs", "max_num_batched_tokens")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    seq_ids: bytes
    branches: bytes
    num_tokens: bytes
    token_ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    errors: _containers.RepeatedCompositeFieldContainer[SequenceError]
    timings: StepTimings
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    max_num_batched_tokens: int
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., seq_ids: _Optional[bytes] = ..., branches: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[SequenceError, _Mapping]]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., max_num_batched_tokens: _Optional[int] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("seq_id", "first_position", "logprobs")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    first_position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    def __init__(self, seq_id: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ...) -> None: ...

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

class SequenceError(_message.Message):
    __slots__ = ("seq_id", "code", "message")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    code: int
    message: str
    def __init__(self, seq_id: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class StepTimings(_message.Message):
    __slots__ = ("wait_ns", "swap_ns", "forward_ns", "sample_ns")
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    SWAP_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    wait_ns: int
    swap_ns: int
    forward_ns: int
    sample_ns: int
    def __init__(self, wait_ns: _Optional[int] = ..., swap_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ...) -> None: ...
