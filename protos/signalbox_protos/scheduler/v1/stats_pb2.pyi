from signalbox_protos.scheduler.v1 import explain_pb2 as _explain_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatsRequest(_message.Message):
    __slots__ = ("max_live_requests",)
    MAX_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    max_live_requests: int
    def __init__(self, max_live_requests: _Optional[int] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("num_requests_waiting", "workers", "uptime_ns", "requests", "num_refused", "live_requests", "model_name", "quarantined_workers", "num_worker_failures", "launcher")
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
    NUM_WORKER_FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAUNCHER_FIELD_NUMBER: _ClassVar[int]
    num_requests_waiting: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStats]
    uptime_ns: int
    requests: RequestStats
    num_refused: _containers.ScalarMap[str, int]
    live_requests: _containers.RepeatedCompositeFieldContainer[RequestSummary]
    model_name: str
    quarantined_workers: _containers.RepeatedCompositeFieldContainer[QuarantinedWorker]
    num_worker_failures: int
    launcher: LauncherState
    def __init__(self, num_requests_waiting: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStats, _Mapping]]] = ..., uptime_ns: _Optional[int] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., num_refused: _Optional[_Mapping[str, int]] = ..., live_requests: _Optional[_Iterable[_Union[RequestSummary, _Mapping]]] = ..., model_name: _Optional[str] = ..., quarantined_workers: _Optional[_Iterable[_Union[QuarantinedWorker, _Mapping]]] = ..., num_worker_failures: _Optional[int] = ..., launcher: _Optional[_Union[LauncherState, _Mapping]] = ...) -> None: ...

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

class WorkerStats(_message.Message):
    __slots__ = ("address", "num_requests_running", "num_requests_swapped", "num_gpu_blocks", "num_free_gpu_blocks", "num_cpu_blocks", "num_free_cpu_blocks", "num_steps", "num_preemptions", "num_generated_tokens", "num_prompt_tokens", "num_steps_in_flight", "is_draining", "block_size", "num_cached_gpu_blocks", "num_recomputes", "num_prefix_queries", "num_prefix_hits", "steps", "requests", "copy_bytes_per_second", "prefill_tokens_per_second", "num_cpu_prefix_hits", "num_cached_cpu_blocks", "num_failures", "stages", "store", "peers", "role", "handovers")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_SWAPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_RECOMPUTES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    COPY_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILURES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HANDOVERS_FIELD_NUMBER: _ClassVar[int]
    address: str
    num_requests_running: int
    num_requests_swapped: int
    num_gpu_blocks: int
    num_free_gpu_blocks: int
    num_cpu_blocks: int
    num_free_cpu_blocks: int
    num_steps: int
    num_preemptions: int
    num_generated_tokens: int
    num_prompt_tokens: int
    num_steps_in_flight: int
    is_draining: bool
    block_size: int
    num_cached_gpu_blocks: int
    num_recomputes: int
    num_prefix_queries: int
    num_prefix_hits: int
    steps: StepStats
    requests: RequestStats
    copy_bytes_per_second: float
    prefill_tokens_per_second: float
    num_cpu_prefix_hits: int
    num_cached_cpu_blocks: int
    num_failures: int
    stages: _explain_pb2.StageUse
    store: StoreStats
    peers: StoreStats
    role: str
    handovers: HandoverStats
    def __init__(self, address: _Optional[str] = ..., num_requests_running: _Optional[int] = ..., num_requests_swapped: _Optional[int] = ..., num_gpu_blocks: _Optional[int] = ..., num_free_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ..., num_free_cpu_blocks: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_generated_tokens: _Optional[int] = ..., num_prompt_tokens: _Optional[int] = ..., num_steps_in_flight: _Optional[int] = ..., is_draining: _Optional[bool] = ..., block_size: _Optional[int] = ..., num_cached_gpu_blocks: _Optional[int] = ..., num_recomputes: _Optional[int] = ..., num_prefix_queries: _Optional[int] = ..., num_prefix_hits: _Optional[int] = ..., steps: _Optional[_Union[StepStats, _Mapping]] = ..., requests: _Optional[_Union[RequestStats, _Mapping]] = ..., copy_bytes_per_second: _Optional[float] = ..., prefill_tokens_per_second: _Optional[float] = ..., num_cpu_prefix_hits: _Optional[int] = ..., num_cached_cpu_blocks: _Optional[int] = ..., num_failures: _Optional[int] = ..., stages: _Optional[_Union[_explain_pb2.StageUse, _Mapping]] = ..., store: _Optional[_Union[StoreStats, _Mapping]] = ..., peers: _Optional[_Union[StoreStats, _Mapping]] = ..., role: _Optional[str] = ..., handovers: _Optional[_Union[HandoverStats, _Mapping]] = ...) -> None: ...

class HandoverStats(_message.Message):
    __slots__ = ("num_handed_over", "num_taken_over", "num_given_up", "num_bytes", "pause_ns")
    NUM_HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    NUM_TAKEN_OVER_FIELD_NUMBER: _ClassVar[int]
    NUM_GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_NS_FIELD_NUMBER: _ClassVar[int]
    num_handed_over: int
    num_taken_over: int
    num_given_up: int
    num_bytes: int
    pause_ns: Histogram
    def __init__(self, num_handed_over: _Optional[int] = ..., num_taken_over: _Optional[int] = ..., num_given_up: _Optional[int] = ..., num_bytes: _Optional[int] = ..., pause_ns: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("kind", "num_requests_loading", "num_queries", "num_hits", "num_fetched_bytes", "num_stored_bytes", "num_stored_blocks", "num_failed_loads", "num_late_loads", "num_failed_stores", "load_bytes_per_second")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_LOADING_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_HITS_FIELD_NUMBER: _ClassVar[int]
    NUM_FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_LOADS_FIELD_NUMBER: _ClassVar[int]
    NUM_LATE_LOADS_FIELD_NUMBER: _ClassVar[int]
    NUM_FAILED_STORES_FIELD_NUMBER: _ClassVar[int]
    LOAD_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    num_requests_loading: int
    num_queries: int
    num_hits: int
    num_fetched_bytes: int
    num_stored_bytes: int
    num_stored_blocks: int
    num_failed_loads: int
    num_late_loads: int
    num_failed_stores: int
    load_bytes_per_second: float
    def __init__(self, kind: _Optional[str] = ..., num_requests_loading: _Optional[int] = ..., num_queries: _Optional[int] = ..., num_hits: _Optional[int] = ..., num_fetched_bytes: _Optional[int] = ..., num_stored_bytes: _Optional[int] = ..., num_stored_blocks: _Optional[int] = ..., num_failed_loads: _Optional[int] = ..., num_late_loads: _Optional[int] = ..., num_failed_stores: _Optional[int] = ..., load_bytes_per_second: _Optional[float] = ...) -> None: ...

class StepStats(_message.Message):
    __slots__ = ("tokens", "duration_ns", "num_prefill_tokens", "wait_ns", "swap_ns", "forward_ns", "sample_ns", "num_blocks_swapped_out", "num_blocks_swapped_in", "num_blocks_copied")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    SWAP_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_NS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_OUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_SWAPPED_IN_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_COPIED_FIELD_NUMBER: _ClassVar[int]
    tokens: Histogram
    duration_ns: Histogram
    num_prefill_tokens: int
    wait_ns: int
    swap_ns: int
    forward_ns: int
    sample_ns: int
    num_blocks_swapped_out: int
    num_blocks_swapped_in: int
    num_blocks_copied: int
    def __init__(self, tokens: _Optional[_Union[Histogram, _Mapping]] = ..., duration_ns: _Optional[_Union[Histogram, _Mapping]] = ..., num_prefill_tokens: _Optional[int] = ..., wait_ns: _Optional[int] = ..., swap_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., sample_ns: _Optional[int] = ..., num_blocks_swapped_out: _Optional[int] = ..., num_blocks_swapped_in: _Optional[int] = ..., num_blocks_copied: _Optional[int] = ...) -> None: ...

class RequestStats(_message.Message):
    __slots__ = ("num_ended", "queue_ns", "time_to_first_token_ns", "time_per_output_token_ns", "duration_ns")
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
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    num_ended: _containers.ScalarMap[str, int]
    queue_ns: Histogram
    time_to_first_token_ns: Histogram
    time_per_output_token_ns: Histogram
    duration_ns: Histogram
    def __init__(self, num_ended: _Optional[_Mapping[str, int]] = ..., queue_ns: _Optional[_Union[Histogram, _Mapping]] = ..., time_to_first_token_ns: _Optional[_Union[Histogram, _Mapping]] = ..., time_per_output_token_ns: _Optional[_Union[Histogram, _Mapping]] = ..., duration_ns: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "sum")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: int
    def __init__(self, bounds: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., sum: _Optional[int] = ...) -> None: ...
