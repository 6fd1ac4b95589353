from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HoldKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOLD_KIND_UNSPECIFIED: _ClassVar[HoldKind]
    HOLD_KIND_PLAN: _ClassVar[HoldKind]
    HOLD_KIND_PREFIX: _ClassVar[HoldKind]
    HOLD_KIND_FETCH: _ClassVar[HoldKind]
    HOLD_KIND_STORE: _ClassVar[HoldKind]
    HOLD_KIND_EXPORT: _ClassVar[HoldKind]
    HOLD_KIND_MIGRATION: _ClassVar[HoldKind]
    HOLD_KIND_AUDIT: _ClassVar[HoldKind]
HOLD_KIND_UNSPECIFIED: HoldKind
HOLD_KIND_PLAN: HoldKind
HOLD_KIND_PREFIX: HoldKind
HOLD_KIND_FETCH: HoldKind
HOLD_KIND_STORE: HoldKind
HOLD_KIND_EXPORT: HoldKind
HOLD_KIND_MIGRATION: HoldKind
HOLD_KIND_AUDIT: HoldKind

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("frame",)
    FRAME_FIELD_NUMBER: _ClassVar[int]
    frame: Frame
    def __init__(self, frame: _Optional[_Union[Frame, _Mapping]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("at_ns", "is_full", "num_waiting", "starting", "workers", "left_workers", "num_wrong")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    LEFT_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NUM_WRONG_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    is_full: bool
    num_waiting: int
    starting: StartingWorkers
    workers: _containers.RepeatedCompositeFieldContainer[WorkerFrame]
    left_workers: _containers.RepeatedScalarFieldContainer[int]
    num_wrong: int
    def __init__(self, at_ns: _Optional[int] = ..., is_full: _Optional[bool] = ..., num_waiting: _Optional[int] = ..., starting: _Optional[_Union[StartingWorkers, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerFrame, _Mapping]]] = ..., left_workers: _Optional[_Iterable[int]] = ..., num_wrong: _Optional[int] = ...) -> None: ...

class StartingWorkers(_message.Message):
    __slots__ = ("phases",)
    PHASES_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, phases: _Optional[_Iterable[str]] = ...) -> None: ...

class WorkerFrame(_message.Message):
    __slots__ = ("number", "description", "new_sequences", "gone_seq_ids", "seq_ids", "states", "num_tokens", "num_computed_tokens", "table_seq_ids", "table_num_kept", "table_num_blocks", "table_blocks", "gpu", "cpu", "steps", "num_omitted_steps")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NEW_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GONE_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TABLE_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    TABLE_NUM_KEPT_FIELD_NUMBER: _ClassVar[int]
    TABLE_NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_OMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    number: int
    description: WorkerDescription
    new_sequences: _containers.RepeatedCompositeFieldContainer[WatchedSequence]
    gone_seq_ids: bytes
    seq_ids: bytes
    states: bytes
    num_tokens: bytes
    num_computed_tokens: bytes
    table_seq_ids: bytes
    table_num_kept: bytes
    table_num_blocks: bytes
    table_blocks: bytes
    gpu: PoolFrame
    cpu: PoolFrame
    steps: _containers.RepeatedCompositeFieldContainer[WatchedStep]
    num_omitted_steps: int
    def __init__(self, number: _Optional[int] = ..., description: _Optional[_Union[WorkerDescription, _Mapping]] = ..., new_sequences: _Optional[_Iterable[_Union[WatchedSequence, _Mapping]]] = ..., gone_seq_ids: _Optional[bytes] = ..., seq_ids: _Optional[bytes] = ..., states: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., num_computed_tokens: _Optional[bytes] = ..., table_seq_ids: _Optional[bytes] = ..., table_num_kept: _Optional[bytes] = ..., table_num_blocks: _Optional[bytes] = ..., table_blocks: _Optional[bytes] = ..., gpu: _Optional[_Union[PoolFrame, _Mapping]] = ..., cpu: _Optional[_Union[PoolFrame, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[WatchedStep, _Mapping]]] = ..., num_omitted_steps: _Optional[int] = ...) -> None: ...

class WorkerDescription(_message.Message):
    __slots__ = ("address", "is_draining", "role", "block_size", "num_gpu_blocks", "num_cpu_blocks", "ranks", "store", "groups")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    address: str
    is_draining: bool
    role: str
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    ranks: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerRank]
    store: str
    groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.CacheGroup]
    def __init__(self, address: _Optional[str] = ..., is_draining: _Optional[bool] = ..., role: _Optional[str] = ..., block_size: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[_common_pb2.WorkerRank, _Mapping]]] = ..., store: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[_common_pb2.CacheGroup, _Mapping]]] = ...) -> None: ...

class WatchedSequence(_message.Message):
    __slots__ = ("seq_id", "request_number", "num_prompt_tokens", "max_tokens", "arrived_at_ns")
    SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    seq_id: int
    request_number: int
    num_prompt_tokens: int
    max_tokens: int
    arrived_at_ns: int
    def __init__(self, seq_id: _Optional[int] = ..., request_number: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., arrived_at_ns: _Optional[int] = ...) -> None: ...

class PoolFrame(_message.Message):
    __slots__ = ("cached", "uncached", "held")
    CACHED_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    cached: bytes
    uncached: bytes
    held: _containers.RepeatedCompositeFieldContainer[HeldBlocks]
    def __init__(self, cached: _Optional[bytes] = ..., uncached: _Optional[bytes] = ..., held: _Optional[_Iterable[_Union[HeldBlocks, _Mapping]]] = ...) -> None: ...

class HeldBlocks(_message.Message):
    __slots__ = ("kind", "blocks")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    kind: HoldKind
    blocks: bytes
    def __init__(self, kind: _Optional[_Union[HoldKind, str]] = ..., blocks: _Optional[bytes] = ...) -> None: ...

class WatchedStep(_message.Message):
    __slots__ = ("step_id", "answered_at_ns", "duration_ns", "num_tokens", "num_decodes", "prefill_seq_ids", "prefill_num_tokens", "num_moved", "first_token_ns")
    class NumMovedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DECODES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SEQ_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_MOVED_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    answered_at_ns: int
    duration_ns: int
    num_tokens: int
    num_decodes: int
    prefill_seq_ids: bytes
    prefill_num_tokens: bytes
    num_moved: _containers.ScalarMap[str, int]
    first_token_ns: bytes
    def __init__(self, step_id: _Optional[int] = ..., answered_at_ns: _Optional[int] = ..., duration_ns: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_decodes: _Optional[int] = ..., prefill_seq_ids: _Optional[bytes] = ..., prefill_num_tokens: _Optional[bytes] = ..., num_moved: _Optional[_Mapping[str, int]] = ..., first_token_ns: _Optional[bytes] = ...) -> None: ...
