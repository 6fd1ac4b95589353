from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_SOURCE_UNSPECIFIED: _ClassVar[DraftSource]
    DRAFT_SOURCE_GRAMMAR: _ClassVar[DraftSource]
    DRAFT_SOURCE_TEXT: _ClassVar[DraftSource]
    DRAFT_SOURCE_PREDICTION: _ClassVar[DraftSource]
    DRAFT_SOURCE_RECENT: _ClassVar[DraftSource]
    DRAFT_SOURCE_MODEL: _ClassVar[DraftSource]
    DRAFT_SOURCE_MTP: _ClassVar[DraftSource]
    DRAFT_SOURCE_PACKAGE: _ClassVar[DraftSource]
DRAFT_SOURCE_UNSPECIFIED: DraftSource
DRAFT_SOURCE_GRAMMAR: DraftSource
DRAFT_SOURCE_TEXT: DraftSource
DRAFT_SOURCE_PREDICTION: DraftSource
DRAFT_SOURCE_RECENT: DraftSource
DRAFT_SOURCE_MODEL: DraftSource
DRAFT_SOURCE_MTP: DraftSource
DRAFT_SOURCE_PACKAGE: DraftSource

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
    model: _common_pb2.ModelInfo
    capacity: _common_pb2.WorkerCapacity
    memory: _containers.RepeatedCompositeFieldContainer[MemoryPart]
    def __init__(self, epoch: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., memory: _Optional[_Iterable[_Union[MemoryPart, _Mapping]]] = ...) -> None: ...

class MemoryPart(_message.Message):
    __slots__ = ("name", "meaning", "num_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEANING_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    meaning: str
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., meaning: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class ReadBlocksRequest(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class ReadBlocksResponse(_message.Message):
    __slots__ = ("chunk", "digest")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    digest: bytes
    def __init__(self, chunk: _Optional[bytes] = ..., digest: _Optional[bytes] = ...) -> None: ...

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
    structured_output: _common_pb2.StructuredOutput
    cost: _common_pb2.GrammarCost
    forgotten: _containers.RepeatedCompositeFieldContainer[_common_pb2.StructuredOutput]
    def __init__(self, epoch: _Optional[int] = ..., structured_output: _Optional[_Union[_common_pb2.StructuredOutput, _Mapping]] = ..., cost: _Optional[_Union[_common_pb2.GrammarCost, _Mapping]] = ..., forgotten: _Optional[_Iterable[_Union[_common_pb2.StructuredOutput, _Mapping]]] = ...) -> None: ...

class PrepareGrammarResponse(_message.Message):
    __slots__ = ("fault",)
    FAULT_FIELD_NUMBER: _ClassVar[int]
    fault: str
    def __init__(self, fault: _Optional[str] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("epoch", "name", "path", "loaded_at_ns")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LOADED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    name: str
    path: str
    loaded_at_ns: int
    def __init__(self, epoch: _Optional[int] = ..., name: _Optional[str] = ..., path: _Optional[str] = ..., loaded_at_ns: _Optional[int] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_common_pb2.Adapter, _Mapping]] = ...) -> None: ...

class ReadAdapterRequest(_message.Message):
    __slots__ = ("epoch", "name", "sha256")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    name: str
    sha256: str
    def __init__(self, epoch: _Optional[int] = ..., name: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class ReadAdapterResponse(_message.Message):
    __slots__ = ("chunk",)
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: AdapterChunk
    def __init__(self, chunk: _Optional[_Union[AdapterChunk, _Mapping]] = ...) -> None: ...

class AdapterChunk(_message.Message):
    __slots__ = ("file_name", "content")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    content: bytes
    def __init__(self, file_name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class SendAdapterRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: SendAdapterHeader
    chunk: AdapterChunk
    def __init__(self, header: _Optional[_Union[SendAdapterHeader, _Mapping]] = ..., chunk: _Optional[_Union[AdapterChunk, _Mapping]] = ...) -> None: ...

class SendAdapterHeader(_message.Message):
    __slots__ = ("epoch", "adapter")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    adapter: _common_pb2.Adapter
    def __init__(self, epoch: _Optional[int] = ..., adapter: _Optional[_Union[_common_pb2.Adapter, _Mapping]] = ...) -> None: ...

class SendAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("epoch", "name", "sha256")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    name: str
    sha256: str
    def __init__(self, epoch: _Optional[int] = ..., name: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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

class SequenceGroupMetadata(_message.Message):
    __slots__ = ("request_id", "sampling_params", "num_prompt_tokens", "sequences", "adapter", "prediction", "returns_logits", "owner")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    RETURNS_LOGITS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    sampling_params: _common_pb2.SamplingParams
    num_prompt_tokens: int
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceMetadata]
    adapter: str
    prediction: bytes
    returns_logits: bool
    owner: bytes
    def __init__(self, request_id: _Optional[str] = ..., sampling_params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., num_prompt_tokens: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[SequenceMetadata, _Mapping]]] = ..., adapter: _Optional[str] = ..., prediction: _Optional[bytes] = ..., returns_logits: _Optional[bool] = ..., owner: _Optional[bytes] = ...) -> None: ...

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

class State(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, blocks: _Optional[_Iterable[int]] = ...) -> None: ...

class ExecuteModelRequest(_message.Message):
    __slots__ = ("epoch", "step_id", "finished_seq_ids", "new_groups", "running", "block_table_patches", "trace_context", "forks", "block_moves", "pooling", "store_moves", "states", "draft_limits")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NEW_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_PATCHES_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MOVES_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    STORE_MOVES_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LIMITS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    finished_seq_ids: bytes
    new_groups: _containers.RepeatedCompositeFieldContainer[SequenceGroupMetadata]
    running: RunningSequences
    block_table_patches: BlockTablePatches
    trace_context: _common_pb2.TraceContext
    forks: Forks
    block_moves: _common_pb2.BlockMoves
    pooling: Pooling
    store_moves: StoreMoves
    states: _containers.RepeatedCompositeFieldContainer[State]
    draft_limits: DraftLimits
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., finished_seq_ids: _Optional[bytes] = ..., new_groups: _Optional[_Iterable[_Union[SequenceGroupMetadata, _Mapping]]] = ..., running: _Optional[_Union[RunningSequences, _Mapping]] = ..., block_table_patches: _Optional[_Union[BlockTablePatches, _Mapping]] = ..., trace_context: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., forks: _Optional[_Union[Forks, _Mapping]] = ..., block_moves: _Optional[_Union[_common_pb2.BlockMoves, _Mapping]] = ..., pooling: _Optional[_Union[Pooling, _Mapping]] = ..., store_moves: _Optional[_Union[StoreMoves, _Mapping]] = ..., states: _Optional[_Iterable[_Union[State, _Mapping]]] = ..., draft_limits: _Optional[_Union[DraftLimits, _Mapping]] = ...) -> None: ...

class DraftLimits(_message.Message):
    __slots__ = ("seq_ids", "most")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    MOST_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    most: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., most: _Optional[bytes] = ...) -> None: ...

class DraftCounts(_message.Message):
    __slots__ = ("seq_ids", "num_drafts", "sources")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    num_drafts: bytes
    sources: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., num_drafts: _Optional[bytes] = ..., sources: _Optional[bytes] = ...) -> None: ...

class StoreMoves(_message.Message):
    __slots__ = ("cancelled_move_ids", "clears", "finds", "fetches", "stores", "exports")
    CANCELLED_MOVE_IDS_FIELD_NUMBER: _ClassVar[int]
    CLEARS_FIELD_NUMBER: _ClassVar[int]
    FINDS_FIELD_NUMBER: _ClassVar[int]
    FETCHES_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    EXPORTS_FIELD_NUMBER: _ClassVar[int]
    cancelled_move_ids: bytes
    clears: _containers.RepeatedCompositeFieldContainer[ClearStore]
    finds: _containers.RepeatedCompositeFieldContainer[FindBlocks]
    fetches: _containers.RepeatedCompositeFieldContainer[FetchBlocks]
    stores: _containers.RepeatedCompositeFieldContainer[StoreBlocks]
    exports: _containers.RepeatedCompositeFieldContainer[ExportBlocks]
    def __init__(self, cancelled_move_ids: _Optional[bytes] = ..., clears: _Optional[_Iterable[_Union[ClearStore, _Mapping]]] = ..., finds: _Optional[_Iterable[_Union[FindBlocks, _Mapping]]] = ..., fetches: _Optional[_Iterable[_Union[FetchBlocks, _Mapping]]] = ..., stores: _Optional[_Iterable[_Union[StoreBlocks, _Mapping]]] = ..., exports: _Optional[_Iterable[_Union[ExportBlocks, _Mapping]]] = ...) -> None: ...

class ClearStore(_message.Message):
    __slots__ = ("move_id", "tenant", "mark")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    tenant: str
    mark: _common_pb2.ClearMark
    def __init__(self, move_id: _Optional[int] = ..., tenant: _Optional[str] = ..., mark: _Optional[_Union[_common_pb2.ClearMark, _Mapping]] = ...) -> None: ...

class FindBlocks(_message.Message):
    __slots__ = ("move_id", "hashes", "seeks")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    SEEKS_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    hashes: bytes
    seeks: bool
    def __init__(self, move_id: _Optional[int] = ..., hashes: _Optional[bytes] = ..., seeks: _Optional[bool] = ...) -> None: ...

class FetchBlocks(_message.Message):
    __slots__ = ("move_id", "hashes", "cpu_blocks", "source")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    hashes: bytes
    cpu_blocks: bytes
    source: BlockSource
    def __init__(self, move_id: _Optional[int] = ..., hashes: _Optional[bytes] = ..., cpu_blocks: _Optional[bytes] = ..., source: _Optional[_Union[BlockSource, _Mapping]] = ...) -> None: ...

class BlockSource(_message.Message):
    __slots__ = ("address", "server_name", "ticket")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVER_NAME_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    address: str
    server_name: str
    ticket: bytes
    def __init__(self, address: _Optional[str] = ..., server_name: _Optional[str] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class ExportBlocks(_message.Message):
    __slots__ = ("move_id", "hashes", "cpu_blocks", "ticket", "reader", "lasts_ns")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    READER_FIELD_NUMBER: _ClassVar[int]
    LASTS_NS_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    hashes: bytes
    cpu_blocks: bytes
    ticket: bytes
    reader: str
    lasts_ns: int
    def __init__(self, move_id: _Optional[int] = ..., hashes: _Optional[bytes] = ..., cpu_blocks: _Optional[bytes] = ..., ticket: _Optional[bytes] = ..., reader: _Optional[str] = ..., lasts_ns: _Optional[int] = ...) -> None: ...

class StoreBlocks(_message.Message):
    __slots__ = ("move_id", "hashes", "cpu_blocks", "tenant")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    hashes: bytes
    cpu_blocks: bytes
    tenant: str
    def __init__(self, move_id: _Optional[int] = ..., hashes: _Optional[bytes] = ..., cpu_blocks: _Optional[bytes] = ..., tenant: _Optional[str] = ...) -> None: ...

class MoveResult(_message.Message):
    __slots__ = ("move_id", "num_blocks", "num_bytes", "duration_ns", "failed")
    MOVE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    move_id: int
    num_blocks: int
    num_bytes: int
    duration_ns: int
    failed: str
    def __init__(self, move_id: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_bytes: _Optional[int] = ..., duration_ns: _Optional[int] = ..., failed: _Optional[str] = ...) -> None: ...

class Pooling(_message.Message):
    __slots__ = ("seq_ids", "num_first_segment_tokens", "num_skipped_tokens", "per_token_seq_ids")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_FIRST_SEGMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SKIPPED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    num_first_segment_tokens: bytes
    num_skipped_tokens: bytes
    per_token_seq_ids: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., num_first_segment_tokens: _Optional[bytes] = ..., num_skipped_tokens: _Optional[bytes] = ..., per_token_seq_ids: _Optional[bytes] = ...) -> None: ...

class Pooled(_message.Message):
    __slots__ = ("seq_ids", "values", "num_values")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_VALUES_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    values: bytes
    num_values: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., values: _Optional[bytes] = ..., num_values: _Optional[bytes] = ...) -> None: ...

class ExecuteModelResponse(_message.Message):
    __slots__ = ("epoch", "step_id", "seq_ids", "branches", "num_tokens", "token_ids", "logprobs", "errors", "timings", "prompt_logprobs", "max_num_batched_tokens", "pooled", "moves", "masks", "drafts", "draw_logits", "draft_offers")
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
    POOLED_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    DRAFTS_FIELD_NUMBER: _ClassVar[int]
    DRAW_LOGITS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_OFFERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step_id: int
    seq_ids: bytes
    branches: bytes
    num_tokens: bytes
    token_ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    errors: _containers.RepeatedCompositeFieldContainer[SequenceError]
    timings: StepTimings
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    max_num_batched_tokens: int
    pooled: Pooled
    moves: _containers.RepeatedCompositeFieldContainer[MoveResult]
    masks: MaskTimes
    drafts: DraftCounts
    draw_logits: bytes
    draft_offers: bytes
    def __init__(self, epoch: _Optional[int] = ..., step_id: _Optional[int] = ..., seq_ids: _Optional[bytes] = ..., branches: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., errors: _Optional[_Iterable[_Union[SequenceError, _Mapping]]] = ..., timings: _Optional[_Union[StepTimings, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., max_num_batched_tokens: _Optional[int] = ..., pooled: _Optional[_Union[Pooled, _Mapping]] = ..., moves: _Optional[_Iterable[_Union[MoveResult, _Mapping]]] = ..., masks: _Optional[_Union[MaskTimes, _Mapping]] = ..., drafts: _Optional[_Union[DraftCounts, _Mapping]] = ..., draw_logits: _Optional[bytes] = ..., draft_offers: _Optional[bytes] = ...) -> None: ...

class MaskTimes(_message.Message):
    __slots__ = ("seq_ids", "cpu_ns")
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    CPU_NS_FIELD_NUMBER: _ClassVar[int]
    seq_ids: bytes
    cpu_ns: bytes
    def __init__(self, seq_ids: _Optional[bytes] = ..., cpu_ns: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("seq_id", "first_position", "logprobs")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    first_position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, seq_id: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("wait_ns", "swap_ns", "forward_ns", "sample_ns", "stages")
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    SWAP_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    wait_ns: int
    swap_ns: int
    forward_ns: int
    sample_ns: int
    stages: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTimings]
    def __init__(self, wait_ns: _Optional[int] = ..., swap_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_common_pb2.StageTimings, _Mapping]]] = ...) -> None: ...
