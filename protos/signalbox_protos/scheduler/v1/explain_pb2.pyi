from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.scheduler.v1 import sample_pb2 as _sample_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REQUEST_STATE_UNSPECIFIED: _ClassVar[RequestState]
    REQUEST_STATE_WAITING: _ClassVar[RequestState]
    REQUEST_STATE_RUNNING: _ClassVar[RequestState]
    REQUEST_STATE_SWAPPED: _ClassVar[RequestState]
    REQUEST_STATE_ENDED: _ClassVar[RequestState]
    REQUEST_STATE_LOADING: _ClassVar[RequestState]

class EventKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVENT_KIND_UNSPECIFIED: _ClassVar[EventKind]
    EVENT_KIND_QUEUED: _ClassVar[EventKind]
    EVENT_KIND_SCHEDULED: _ClassVar[EventKind]
    EVENT_KIND_PREFILL: _ClassVar[EventKind]
    EVENT_KIND_FIRST_TOKEN: _ClassVar[EventKind]
    EVENT_KIND_FORKED: _ClassVar[EventKind]
    EVENT_KIND_PREEMPTED: _ClassVar[EventKind]
    EVENT_KIND_RESUMED: _ClassVar[EventKind]
    EVENT_KIND_MOVED: _ClassVar[EventKind]
    EVENT_KIND_SEQUENCE_FINISHED: _ClassVar[EventKind]
    EVENT_KIND_ENDED: _ClassVar[EventKind]
    EVENT_KIND_SUSPECTED: _ClassVar[EventKind]
    EVENT_KIND_CLEARED: _ClassVar[EventKind]
    EVENT_KIND_POOLED: _ClassVar[EventKind]
    EVENT_KIND_FETCHED: _ClassVar[EventKind]
    EVENT_KIND_STORED: _ClassVar[EventKind]
    EVENT_KIND_MIGRATED: _ClassVar[EventKind]
    EVENT_KIND_DEAR_MASKS: _ClassVar[EventKind]
    EVENT_KIND_AUDITED: _ClassVar[EventKind]

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_NEXT_STEP: _ClassVar[WaitReason]
    WAIT_REASON_NO_WORKER: _ClassVar[WaitReason]
    WAIT_REASON_TOKENS: _ClassVar[WaitReason]
    WAIT_REASON_SEQUENCES: _ClassVar[WaitReason]
    WAIT_REASON_BLOCKS: _ClassVar[WaitReason]
    WAIT_REASON_SWAPPED_FIRST: _ClassVar[WaitReason]
    WAIT_REASON_GRAMMAR: _ClassVar[WaitReason]
    WAIT_REASON_SUSPECT: _ClassVar[WaitReason]
    WAIT_REASON_LOADING: _ClassVar[WaitReason]

class PrefixCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFIX_CAUSE_UNSPECIFIED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_UNCHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_NOT_FOUND: _ClassVar[PrefixCause]
    PREFIX_CAUSE_MODEL_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_TOOLS_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_SYSTEM_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_MESSAGE_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_ANSWER_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_REASONING_LEFT_OUT: _ClassVar[PrefixCause]
    PREFIX_CAUSE_SETTINGS_CHANGED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_REASONING_DROPPED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_ARGUMENTS_RESPELLED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_TURNS_DROPPED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_RENDERED_ANEW: _ClassVar[PrefixCause]
    PREFIX_CAUSE_EVICTED: _ClassVar[PrefixCause]
    PREFIX_CAUSE_OTHER_SCHEDULER: _ClassVar[PrefixCause]
REQUEST_STATE_UNSPECIFIED: RequestState
REQUEST_STATE_WAITING: RequestState
REQUEST_STATE_RUNNING: RequestState
REQUEST_STATE_SWAPPED: RequestState
REQUEST_STATE_ENDED: RequestState
REQUEST_STATE_LOADING: RequestState
EVENT_KIND_UNSPECIFIED: EventKind
EVENT_KIND_QUEUED: EventKind
EVENT_KIND_SCHEDULED: EventKind
EVENT_KIND_PREFILL: EventKind
EVENT_KIND_FIRST_TOKEN: EventKind
EVENT_KIND_FORKED: EventKind
EVENT_KIND_PREEMPTED: EventKind
EVENT_KIND_RESUMED: EventKind
EVENT_KIND_MOVED: EventKind
EVENT_KIND_SEQUENCE_FINISHED: EventKind
EVENT_KIND_ENDED: EventKind
EVENT_KIND_SUSPECTED: EventKind
EVENT_KIND_CLEARED: EventKind
EVENT_KIND_POOLED: EventKind
EVENT_KIND_FETCHED: EventKind
EVENT_KIND_STORED: EventKind
EVENT_KIND_MIGRATED: EventKind
EVENT_KIND_DEAR_MASKS: EventKind
EVENT_KIND_AUDITED: EventKind
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_NEXT_STEP: WaitReason
WAIT_REASON_NO_WORKER: WaitReason
WAIT_REASON_TOKENS: WaitReason
WAIT_REASON_SEQUENCES: WaitReason
WAIT_REASON_BLOCKS: WaitReason
WAIT_REASON_SWAPPED_FIRST: WaitReason
WAIT_REASON_GRAMMAR: WaitReason
WAIT_REASON_SUSPECT: WaitReason
WAIT_REASON_LOADING: WaitReason
PREFIX_CAUSE_UNSPECIFIED: PrefixCause
PREFIX_CAUSE_UNCHANGED: PrefixCause
PREFIX_CAUSE_NOT_FOUND: PrefixCause
PREFIX_CAUSE_MODEL_CHANGED: PrefixCause
PREFIX_CAUSE_TOOLS_CHANGED: PrefixCause
PREFIX_CAUSE_SYSTEM_CHANGED: PrefixCause
PREFIX_CAUSE_MESSAGE_CHANGED: PrefixCause
PREFIX_CAUSE_ANSWER_CHANGED: PrefixCause
PREFIX_CAUSE_REASONING_LEFT_OUT: PrefixCause
PREFIX_CAUSE_SETTINGS_CHANGED: PrefixCause
PREFIX_CAUSE_REASONING_DROPPED: PrefixCause
PREFIX_CAUSE_ARGUMENTS_RESPELLED: PrefixCause
PREFIX_CAUSE_TURNS_DROPPED: PrefixCause
PREFIX_CAUSE_RENDERED_ANEW: PrefixCause
PREFIX_CAUSE_EVICTED: PrefixCause
PREFIX_CAUSE_OTHER_SCHEDULER: PrefixCause

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "request_number")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    request_number: int
    def __init__(self, request_id: _Optional[str] = ..., request_number: _Optional[int] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("request_id", "state", "worker", "age_ns", "num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "max_tokens", "num_sequences", "num_preemptions", "queued_ns", "prefill_ns", "decode_ns", "preempted_ns", "events", "num_dropped_events", "waits", "num_ahead", "code", "message", "stages", "role", "samples", "request_number", "block_size", "text", "held_blocks", "prefix")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_NS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: RequestState
    worker: str
    age_ns: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_sequences: int
    num_preemptions: int
    queued_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int
    events: _containers.RepeatedCompositeFieldContainer[Event]
    num_dropped_events: int
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    num_ahead: int
    code: int
    message: str
    stages: StageUse
    role: str
    samples: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Sample]
    request_number: int
    block_size: int
    text: HistoryText
    held_blocks: _containers.RepeatedCompositeFieldContainer[GroupBlocks]
    prefix: PrefixComparison
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[RequestState, str]] = ..., worker: _Optional[str] = ..., age_ns: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., queued_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., preempted_ns: _Optional[int] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., num_dropped_events: _Optional[int] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., num_ahead: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., stages: _Optional[_Union[StageUse, _Mapping]] = ..., role: _Optional[str] = ..., samples: _Optional[_Iterable[_Union[_sample_pb2.Sample, _Mapping]]] = ..., request_number: _Optional[int] = ..., block_size: _Optional[int] = ..., text: _Optional[_Union[HistoryText, _Mapping]] = ..., held_blocks: _Optional[_Iterable[_Union[GroupBlocks, _Mapping]]] = ..., prefix: _Optional[_Union[PrefixComparison, _Mapping]] = ...) -> None: ...

class GroupBlocks(_message.Message):
    __slots__ = ("group", "num_blocks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    group: _common_pb2.CacheGroup
    num_blocks: int
    def __init__(self, group: _Optional[_Union[_common_pb2.CacheGroup, _Mapping]] = ..., num_blocks: _Optional[int] = ...) -> None: ...

class HistoryText(_message.Message):
    __slots__ = ("summary", "lines", "spans")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    summary: _containers.RepeatedScalarFieldContainer[str]
    lines: _containers.RepeatedCompositeFieldContainer[HistoryLine]
    spans: _containers.RepeatedCompositeFieldContainer[HistorySpan]
    def __init__(self, summary: _Optional[_Iterable[str]] = ..., lines: _Optional[_Iterable[_Union[HistoryLine, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[HistorySpan, _Mapping]]] = ...) -> None: ...

class HistoryLine(_message.Message):
    __slots__ = ("at_ns", "event", "details")
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    at_ns: int
    event: str
    details: str
    def __init__(self, at_ns: _Optional[int] = ..., event: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class HistorySpan(_message.Message):
    __slots__ = ("lane", "begins_at_ns", "ends_at_ns", "details")
    LANE_FIELD_NUMBER: _ClassVar[int]
    BEGINS_AT_NS_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_NS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    lane: str
    begins_at_ns: int
    ends_at_ns: int
    details: str
    def __init__(self, lane: _Optional[str] = ..., begins_at_ns: _Optional[int] = ..., ends_at_ns: _Optional[int] = ..., details: _Optional[str] = ...) -> None: ...

class StageUse(_message.Message):
    __slots__ = ("ranks", "stages", "num_steps", "in_flight_ns")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_NS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedCompositeFieldContainer[_common_pb2.WorkerRank]
    stages: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTimings]
    num_steps: int
    in_flight_ns: int
    def __init__(self, ranks: _Optional[_Iterable[_Union[_common_pb2.WorkerRank, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[_common_pb2.StageTimings, _Mapping]]] = ..., num_steps: _Optional[int] = ..., in_flight_ns: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("kind", "at_ns", "worker", "step_id", "num_tokens", "num_cached_tokens", "num_blocks", "num_sequences", "num_ahead", "num_waiting", "is_swap", "other_request_id", "detail", "waits", "branch", "num_bytes", "duration_ns", "source", "store")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_AHEAD_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    IS_SWAP_FIELD_NUMBER: _ClassVar[int]
    OTHER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    kind: EventKind
    at_ns: int
    worker: str
    step_id: int
    num_tokens: int
    num_cached_tokens: int
    num_blocks: int
    num_sequences: int
    num_ahead: int
    num_waiting: int
    is_swap: bool
    other_request_id: str
    detail: str
    waits: _containers.RepeatedCompositeFieldContainer[Wait]
    branch: int
    num_bytes: int
    duration_ns: int
    source: str
    store: str
    def __init__(self, kind: _Optional[_Union[EventKind, str]] = ..., at_ns: _Optional[int] = ..., worker: _Optional[str] = ..., step_id: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_sequences: _Optional[int] = ..., num_ahead: _Optional[int] = ..., num_waiting: _Optional[int] = ..., is_swap: _Optional[bool] = ..., other_request_id: _Optional[str] = ..., detail: _Optional[str] = ..., waits: _Optional[_Iterable[_Union[Wait, _Mapping]]] = ..., branch: _Optional[int] = ..., num_bytes: _Optional[int] = ..., duration_ns: _Optional[int] = ..., source: _Optional[str] = ..., store: _Optional[str] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "duration_ns", "num_plans")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_PLANS_FIELD_NUMBER: _ClassVar[int]
    reason: WaitReason
    duration_ns: int
    num_plans: int
    def __init__(self, reason: _Optional[_Union[WaitReason, str]] = ..., duration_ns: _Optional[int] = ..., num_plans: _Optional[int] = ...) -> None: ...

class PrefixComparison(_message.Message):
    __slots__ = ("cause", "num_kept_tokens", "num_lost_tokens", "path", "is_elsewhere")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    NUM_KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    IS_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    cause: PrefixCause
    num_kept_tokens: int
    num_lost_tokens: int
    path: str
    is_elsewhere: bool
    def __init__(self, cause: _Optional[_Union[PrefixCause, str]] = ..., num_kept_tokens: _Optional[int] = ..., num_lost_tokens: _Optional[int] = ..., path: _Optional[str] = ..., is_elsewhere: _Optional[bool] = ...) -> None: ...
