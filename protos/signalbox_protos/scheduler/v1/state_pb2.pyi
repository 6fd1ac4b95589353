from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as _explain_pb2
from signalbox_protos.scheduler.v1 import sample_pb2 as _sample_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DumpStateRequest(_message.Message):
    __slots__ = ("include_token_ids",)
    INCLUDE_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    include_token_ids: bool
    def __init__(self, include_token_ids: _Optional[bool] = ...) -> None: ...

class DumpStateResponse(_message.Message):
    __slots__ = ("cluster", "worker", "request")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    cluster: ClusterState
    worker: WorkerSchedulerState
    request: LiveRequest
    def __init__(self, cluster: _Optional[_Union[ClusterState, _Mapping]] = ..., worker: _Optional[_Union[WorkerSchedulerState, _Mapping]] = ..., request: _Optional[_Union[LiveRequest, _Mapping]] = ...) -> None: ...

class ClusterState(_message.Message):
    __slots__ = ("model", "waiting_request_ids", "now_ns", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WAITING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NOW_NS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.ModelInfo
    waiting_request_ids: _containers.RepeatedScalarFieldContainer[str]
    now_ns: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., waiting_request_ids: _Optional[_Iterable[str]] = ..., now_ns: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class WorkerSchedulerState(_message.Message):
    __slots__ = ("address", "is_draining", "max_num_seqs", "max_num_batched_tokens", "block_size", "running_request_ids", "swapped_request_ids", "gpu", "cpu", "inflight", "forget_seq_ids", "draining", "decode_batch_seq_ids", "block_bytes", "loading_request_ids", "num_moving_owners", "samples")
    class NumMovingOwnersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    FORGET_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    DECODE_BATCH_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOADING_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_MOVING_OWNERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    address: str
    is_draining: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    running_request_ids: _containers.RepeatedScalarFieldContainer[str]
    swapped_request_ids: _containers.RepeatedScalarFieldContainer[str]
    gpu: BlockPool
    cpu: BlockPool
    inflight: _containers.RepeatedCompositeFieldContainer[PlannedStep]
    forget_seq_ids: _containers.RepeatedScalarFieldContainer[int]
    draining: _containers.RepeatedCompositeFieldContainer[LiveSequence]
    decode_batch_seq_ids: _containers.RepeatedScalarFieldContainer[int]
    block_bytes: int
    loading_request_ids: _containers.RepeatedScalarFieldContainer[str]
    num_moving_owners: _containers.ScalarMap[int, int]
    samples: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Sample]
    def __init__(self, address: _Optional[str] = ..., is_draining: _Optional[bool] = ..., max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., running_request_ids: _Optional[_Iterable[str]] = ..., swapped_request_ids: _Optional[_Iterable[str]] = ..., gpu: _Optional[_Union[BlockPool, _Mapping]] = ..., cpu: _Optional[_Union[BlockPool, _Mapping]] = ..., inflight: _Optional[_Iterable[_Union[PlannedStep, _Mapping]]] = ..., forget_seq_ids: _Optional[_Iterable[int]] = ..., draining: _Optional[_Iterable[_Union[LiveSequence, _Mapping]]] = ..., decode_batch_seq_ids: _Optional[_Iterable[int]] = ..., block_bytes: _Optional[int] = ..., loading_request_ids: _Optional[_Iterable[str]] = ..., num_moving_owners: _Optional[_Mapping[int, int]] = ..., samples: _Optional[_Iterable[_Union[_sample_pb2.Sample, _Mapping]]] = ...) -> None: ...

class BlockPool(_message.Message):
    __slots__ = ("num_blocks", "num_free", "cached_blocks", "num_owners")
    class NumOwnersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_FIELD_NUMBER: _ClassVar[int]
    CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_OWNERS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    num_free: int
    cached_blocks: _containers.RepeatedScalarFieldContainer[int]
    num_owners: _containers.ScalarMap[int, int]
    def __init__(self, num_blocks: _Optional[int] = ..., num_free: _Optional[int] = ..., cached_blocks: _Optional[_Iterable[int]] = ..., num_owners: _Optional[_Mapping[int, int]] = ...) -> None: ...

class PlannedStep(_message.Message):
    __slots__ = ("step_id", "age_ns", "seq_ids", "num_new_tokens", "num_samples", "forget_seq_ids", "block_moves", "deferred_victim_request_ids", "is_short_of_blocks")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FORGET_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_MOVES_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_VICTIM_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    IS_SHORT_OF_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    age_ns: int
    seq_ids: _containers.RepeatedScalarFieldContainer[int]
    num_new_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_samples: _containers.RepeatedScalarFieldContainer[int]
    forget_seq_ids: _containers.RepeatedScalarFieldContainer[int]
    block_moves: _common_pb2.BlockMoves
    deferred_victim_request_ids: _containers.RepeatedScalarFieldContainer[str]
    is_short_of_blocks: bool
    def __init__(self, step_id: _Optional[int] = ..., age_ns: _Optional[int] = ..., seq_ids: _Optional[_Iterable[int]] = ..., num_new_tokens: _Optional[_Iterable[int]] = ..., num_samples: _Optional[_Iterable[int]] = ..., forget_seq_ids: _Optional[_Iterable[int]] = ..., block_moves: _Optional[_Union[_common_pb2.BlockMoves, _Mapping]] = ..., deferred_victim_request_ids: _Optional[_Iterable[str]] = ..., is_short_of_blocks: _Optional[bool] = ...) -> None: ...

class LiveRequest(_message.Message):
    __slots__ = ("explanation", "deadline_in_ns", "sampling_params", "is_in_decode_batch", "num_lost_workers", "sequences", "prompt_token_ids")
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    IS_IN_DECODE_BATCH_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_WORKERS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    explanation: _explain_pb2.ExplainResponse
    deadline_in_ns: int
    sampling_params: _common_pb2.SamplingParams
    is_in_decode_batch: bool
    num_lost_workers: int
    sequences: _containers.RepeatedCompositeFieldContainer[LiveSequence]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, explanation: _Optional[_Union[_explain_pb2.ExplainResponse, _Mapping]] = ..., deadline_in_ns: _Optional[int] = ..., sampling_params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., is_in_decode_batch: _Optional[bool] = ..., num_lost_workers: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[LiveSequence, _Mapping]]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LiveSequence(_message.Message):
    __slots__ = ("seq_id", "branch", "status", "num_tokens", "num_computed_tokens", "num_inflight_tokens", "num_inflight_samples", "block_table", "num_sent_blocks", "num_cached_blocks", "is_on_worker", "finish_reason", "output_token_ids")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_INFLIGHT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_INFLIGHT_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLE_FIELD_NUMBER: _ClassVar[int]
    NUM_SENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IS_ON_WORKER_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    branch: int
    status: str
    num_tokens: int
    num_computed_tokens: int
    num_inflight_tokens: int
    num_inflight_samples: int
    block_table: _containers.RepeatedScalarFieldContainer[int]
    num_sent_blocks: int
    num_cached_blocks: int
    is_on_worker: bool
    finish_reason: str
    output_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seq_id: _Optional[int] = ..., branch: _Optional[int] = ..., status: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_computed_tokens: _Optional[int] = ..., num_inflight_tokens: _Optional[int] = ..., num_inflight_samples: _Optional[int] = ..., block_table: _Optional[_Iterable[int]] = ..., num_sent_blocks: _Optional[int] = ..., num_cached_blocks: _Optional[int] = ..., is_on_worker: _Optional[bool] = ..., finish_reason: _Optional[str] = ..., output_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...
