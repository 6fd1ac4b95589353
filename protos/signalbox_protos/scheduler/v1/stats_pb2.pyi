from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as _explain_pb2
from signalbox_protos.scheduler.v1 import sample_pb2 as _sample_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ("max_live_requests", "max_sessions")
    MAX_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    max_live_requests: int
    max_sessions: int
    def __init__(self, max_live_requests: _Optional[int] = ..., max_sessions: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("num_requests_waiting", "workers", "uptime_ns", "requests", "num_refused", "live_requests", "model_name", "quarantined_workers", "launcher", "samples", "sessions")
    class NumRefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_REQUESTS_WAITING_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_NS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    num_requests_waiting: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStats]
    uptime_ns: int
    requests: RequestStats
    num_refused: _containers.ScalarMap[str, int]
    live_requests: _containers.RepeatedCompositeFieldContainer[RequestSummary]
    model_name: str
    quarantined_workers: _containers.RepeatedCompositeFieldContainer[QuarantinedWorker]
    launcher: LauncherState
    samples: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Sample]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionSummary]
    def __init__(self, num_requests_waiting: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStats, _Mapping]]] = ..., uptime_ns: _Optional[int] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., num_refused: _Optional[_Mapping[str, int]] = ..., live_requests: _Optional[_Iterable[_Union[RequestSummary, _Mapping]]] = ..., model_name: _Optional[str] = ..., quarantined_workers: _Optional[_Iterable[_Union[QuarantinedWorker, _Mapping]]] = ..., launcher: _Optional[_Union[LauncherState, _Mapping]] = ..., samples: _Optional[_Iterable[_Union[_sample_pb2.Sample, _Mapping]]] = ..., sessions: _Optional[_Iterable[_Union[SessionSummary, _Mapping]]] = ...) -> None: ...

class LauncherState(_message.Message):
    __slots__ = ("placement", "num_workers", "pending")
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    NUM_WORKERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    placement: str
    num_workers: int
    pending: _containers.RepeatedCompositeFieldContainer[PendingWorker]
    def __init__(self, placement: _Optional[str] = ..., num_workers: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[PendingWorker, _Mapping]]] = ...) -> None: ...

class PendingWorker(_message.Message):
    __slots__ = ("name", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class QuarantinedWorker(_message.Message):
    __slots__ = ("address", "num_failures", "pause_ns", "left_ns")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_NS_FIELD_NUMBER: _ClassVar[int]
    LEFT_NS_FIELD_NUMBER: _ClassVar[int]
    address: str
    num_failures: int
    pause_ns: int
    left_ns: int
    def __init__(self, address: _Optional[str] = ..., num_failures: _Optional[int] = ..., pause_ns: _Optional[int] = ..., left_ns: _Optional[int] = ...) -> None: ...

class RequestSummary(_message.Message):
    __slots__ = ("request_id", "state", "worker", "num_prompt_tokens", "num_output_tokens", "max_tokens", "age_ns", "waited_ns")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    WAITED_NS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    state: _explain_pb2.RequestState
    worker: str
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int
    age_ns: int
    waited_ns: int
    def __init__(self, request_id: _Optional[str] = ..., state: _Optional[_Union[_explain_pb2.RequestState, str]] = ..., worker: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., age_ns: _Optional[int] = ..., waited_ns: _Optional[int] = ...) -> None: ...

class SessionSummary(_message.Message):
    __slots__ = ("session", "tenant", "num_turns", "num_live_requests", "total", "last_turn", "last_request_id", "last_worker", "idle_ns", "called_tool", "keep_ns", "last_prefix")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NUM_TURNS_FIELD_NUMBER: _ClassVar[int]
    NUM_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LAST_TURN_FIELD_NUMBER: _ClassVar[int]
    LAST_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_WORKER_FIELD_NUMBER: _ClassVar[int]
    IDLE_NS_FIELD_NUMBER: _ClassVar[int]
    CALLED_TOOL_FIELD_NUMBER: _ClassVar[int]
    KEEP_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_PREFIX_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    tenant: str
    num_turns: int
    num_live_requests: int
    total: TurnTokens
    last_turn: TurnTokens
    last_request_id: str
    last_worker: str
    idle_ns: int
    called_tool: bool
    keep_ns: int
    last_prefix: _explain_pb2.PrefixComparison
    def __init__(self, session: _Optional[bytes] = ..., tenant: _Optional[str] = ..., num_turns: _Optional[int] = ..., num_live_requests: _Optional[int] = ..., total: _Optional[_Union[TurnTokens, _Mapping]] = ..., last_turn: _Optional[_Union[TurnTokens, _Mapping]] = ..., last_request_id: _Optional[str] = ..., last_worker: _Optional[str] = ..., idle_ns: _Optional[int] = ..., called_tool: _Optional[bool] = ..., keep_ns: _Optional[int] = ..., last_prefix: _Optional[_Union[_explain_pb2.PrefixComparison, _Mapping]] = ...) -> None: ...

class TurnTokens(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_device_tokens", "num_cpu_tokens", "num_store_tokens", "num_output_tokens")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_DEVICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_device_tokens: int
    num_cpu_tokens: int
    num_store_tokens: int
    num_output_tokens: int
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_device_tokens: _Optional[int] = ..., num_cpu_tokens: _Optional[int] = ..., num_store_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("address", "num_requests_running", "num_requests_swapped", "num_gpu_blocks", "num_free_gpu_blocks", "num_cpu_blocks", "num_free_cpu_blocks", "is_draining", "num_cached_gpu_blocks", "num_cached_cpu_blocks", "num_failures", "role", "requests", "stages", "samples", "groups")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    address: str
    num_requests_running: int
    num_requests_swapped: int
    num_gpu_blocks: int
    num_free_gpu_blocks: int
    num_cpu_blocks: int
    num_free_cpu_blocks: int
    is_draining: bool
    num_cached_gpu_blocks: int
    num_cached_cpu_blocks: int
    num_failures: int
    role: str
    requests: RequestStats
    stages: _explain_pb2.StageUse
    samples: _containers.RepeatedCompositeFieldContainer[_sample_pb2.Sample]
    groups: _containers.RepeatedCompositeFieldContainer[_common_pb2.CacheGroup]
    def __init__(self, address: _Optional[str] = ..., num_requests_running: _Optional[int] = ..., num_requests_swapped: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_free_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., num_free_cpu_blocks: _Optional[int] = ..., is_draining: _Optional[bool] = ..., num_cached_gpu_blocks: _Optional[int] = ..., num_cached_cpu_blocks: _Optional[int] = ..., num_failures: _Optional[int] = ..., role: _Optional[str] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., stages: _Optional[_Union[_explain_pb2.StageUse, _Mapping]] = ..., samples: _Optional[_Iterable[_Union[_sample_pb2.Sample, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[_common_pb2.CacheGroup, _Mapping]]] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("num_ended", "queue_ns", "time_to_first_token_ns", "time_per_output_token_ns")
    class NumEndedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_ENDED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    TIME_PER_OUTPUT_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    num_ended: _containers.ScalarMap[str, int]
    queue_ns: _sample_pb2.Histogram
    time_to_first_token_ns: _sample_pb2.Histogram
    time_per_output_token_ns: _sample_pb2.Histogram
    def __init__(self, num_ended: _Optional[_Mapping[str, int]] = ..., queue_ns: _Optional[_Union[_sample_pb2.Histogram, _Mapping]] = ..., time_to_first_token_ns: _Optional[_Union[_sample_pb2.Histogram, _Mapping]] = ..., time_per_output_token_ns: _Optional[_Union[_sample_pb2.Histogram, _Mapping]] = ...) -> None: ...
