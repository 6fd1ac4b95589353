from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as _explain_pb2
from signalbox_protos.scheduler.v1 import state_pb2 as _state_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as _stats_pb2
from signalbox_protos.scheduler.v1 import watch_pb2 as _watch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_STOP_TOKEN: _ClassVar[FinishReason]
    FINISH_REASON_STOP_STRING: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_READY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]

class StartupPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STARTUP_PHASE_UNSPECIFIED: _ClassVar[StartupPhase]
    STARTUP_PHASE_IMPORT: _ClassVar[StartupPhase]
    STARTUP_PHASE_FETCH: _ClassVar[StartupPhase]
    STARTUP_PHASE_COMPILE: _ClassVar[StartupPhase]
    STARTUP_PHASE_LOAD: _ClassVar[StartupPhase]
    STARTUP_PHASE_PROFILE: _ClassVar[StartupPhase]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_STOP_TOKEN: FinishReason
FINISH_REASON_STOP_STRING: FinishReason
FINISH_REASON_ERROR: FinishReason
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_READY: WorkerState
WORKER_STATE_DRAINING: WorkerState
STARTUP_PHASE_UNSPECIFIED: StartupPhase
STARTUP_PHASE_IMPORT: StartupPhase
STARTUP_PHASE_FETCH: StartupPhase
STARTUP_PHASE_COMPILE: StartupPhase
STARTUP_PHASE_LOAD: StartupPhase
STARTUP_PHASE_PROFILE: StartupPhase

class ConnectRequest(_message.Message):
    __slots__ = ("add_request", "abort_request", "stop_sequence", "session_pauses")
    ADD_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ABORT_REQUEST_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_PAUSES_FIELD_NUMBER: _ClassVar[int]
    add_request: Request
    abort_request: AbortRequest
    stop_sequence: StopSequence
    session_pauses: _containers.RepeatedCompositeFieldContainer[SessionPause]
    def __init__(self, add_request: _Optional[_Union[Request, _Mapping]] = ..., abort_request: _Optional[_Union[AbortRequest, _Mapping]] = ..., stop_sequence: _Optional[_Union[StopSequence, _Mapping]] = ..., session_pauses: _Optional[_Iterable[_Union[SessionPause, _Mapping]]] = ...) -> None: ...

class ConnectResponse(_message.Message):
    __slots__ = ("updates", "model_changed", "heartbeat_interval_ns")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    MODEL_CHANGED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_INTERVAL_NS_FIELD_NUMBER: _ClassVar[int]
    updates: RequestUpdates
    model_changed: bool
    heartbeat_interval_ns: int
    def __init__(self, updates: _Optional[_Union[RequestUpdates, _Mapping]] = ..., model_changed: _Optional[bool] = ..., heartbeat_interval_ns: _Optional[int] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("handle", "request_id", "prompt_token_ids", "sampling_params", "max_tokens", "num_sequences", "timeout_ns", "trace_context", "cache_salt", "tenant", "priority", "beam_search", "attempt", "nonce", "delivered", "num_delivered_prompt_logprobs", "age_ns", "max_tokens_is_default", "payer", "adapter", "pooling", "snapshot_positions", "no_speculation", "prediction", "session", "keep_ns", "model_wait_ns", "prefix", "prewarm")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_PARAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BEAM_SEARCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    NUM_DELIVERED_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    AGE_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    PAYER_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    NO_SPECULATION_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_NS_FIELD_NUMBER: _ClassVar[int]
    MODEL_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PREWARM_FIELD_NUMBER: _ClassVar[int]
    handle: int
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling_params: _common_pb2.SamplingParams
    max_tokens: int
    num_sequences: int
    timeout_ns: int
    trace_context: _common_pb2.TraceContext
    cache_salt: str
    tenant: str
    priority: int
    beam_search: BeamSearchParams
    attempt: int
    nonce: int
    delivered: _containers.RepeatedCompositeFieldContainer[DeliveredSequence]
    num_delivered_prompt_logprobs: int
    age_ns: int
    max_tokens_is_default: bool
    payer: str
    adapter: str
    pooling: _common_pb2.PoolingParams
    snapshot_positions: _containers.RepeatedScalarFieldContainer[int]
    no_speculation: bool
    prediction: _containers.RepeatedScalarFieldContainer[int]
    session: bytes
    keep_ns: int
    model_wait_ns: int
    prefix: _explain_pb2.PrefixComparison
    prewarm: bool
    def __init__(self, handle: _Optional[int] = ..., request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling_params: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., max_tokens: _Optional[int] = ..., num_sequences: _Optional[int] = ..., timeout_ns: _Optional[int] = ..., trace_context: _Optional[_Union[_common_pb2.TraceContext, _Mapping]] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., priority: _Optional[int] = ..., beam_search: _Optional[_Union[BeamSearchParams, _Mapping]] = ..., attempt: _Optional[int] = ..., nonce: _Optional[int] = ..., delivered: _Optional[_Iterable[_Union[DeliveredSequence, _Mapping]]] = ..., num_delivered_prompt_logprobs: _Optional[int] = ..., age_ns: _Optional[int] = ..., max_tokens_is_default: _Optional[bool] = ..., payer: _Optional[str] = ..., adapter: _Optional[str] = ..., pooling: _Optional[_Union[_common_pb2.PoolingParams, _Mapping]] = ..., snapshot_positions: _Optional[_Iterable[int]] = ..., no_speculation: _Optional[bool] = ..., prediction: _Optional[_Iterable[int]] = ..., session: _Optional[bytes] = ..., keep_ns: _Optional[int] = ..., model_wait_ns: _Optional[int] = ..., prefix: _Optional[_Union[_explain_pb2.PrefixComparison, _Mapping]] = ..., prewarm: _Optional[bool] = ...) -> None: ...

class DeliveredSequence(_message.Message):
    __slots__ = ("token_ids", "finish_reason")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    finish_reason: FinishReason
    def __init__(self, token_ids: _Optional[bytes] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ...) -> None: ...

class BeamSearchParams(_message.Message):
    __slots__ = ("width", "length_penalty", "early_stopping")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    width: int
    length_penalty: float
    early_stopping: bool
    def __init__(self, width: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: _Optional[bool] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class StopSequence(_message.Message):
    __slots__ = ("handle", "index", "keep_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEEP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    index: int
    keep_tokens: int
    def __init__(self, handle: _Optional[int] = ..., index: _Optional[int] = ..., keep_tokens: _Optional[int] = ...) -> None: ...

class SessionPause(_message.Message):
    __slots__ = ("session", "called_tool")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALLED_TOOL_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    called_tool: bool
    def __init__(self, session: _Optional[bytes] = ..., called_tool: _Optional[bool] = ...) -> None: ...

class RequestUpdates(_message.Message):
    __slots__ = ("handles", "indices", "num_tokens", "token_ids", "logprobs", "finished_sequences", "finished_requests", "prompt_logprobs", "admitted", "pooled")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    FINISHED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    handles: bytes
    indices: bytes
    num_tokens: bytes
    token_ids: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    finished_sequences: _containers.RepeatedCompositeFieldContainer[FinishedSequence]
    finished_requests: _containers.RepeatedCompositeFieldContainer[FinishedRequest]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    admitted: _containers.RepeatedCompositeFieldContainer[AdmittedRequest]
    pooled: _containers.RepeatedCompositeFieldContainer[PooledOutput]
    def __init__(self, handles: _Optional[bytes] = ..., indices: _Optional[bytes] = ..., num_tokens: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., finished_sequences: _Optional[_Iterable[_Union[FinishedSequence, _Mapping]]] = ..., finished_requests: _Optional[_Iterable[_Union[FinishedRequest, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., admitted: _Optional[_Iterable[_Union[AdmittedRequest, _Mapping]]] = ..., pooled: _Optional[_Iterable[_Union[PooledOutput, _Mapping]]] = ...) -> None: ...

class PooledOutput(_message.Message):
    __slots__ = ("handle", "values")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    values: bytes
    def __init__(self, handle: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class AdmittedRequest(_message.Message):
    __slots__ = ("handle", "max_tokens")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    max_tokens: int
    def __init__(self, handle: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("handle", "first_position", "logprobs")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    first_position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, handle: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class FinishedSequence(_message.Message):
    __slots__ = ("handle", "index", "reason", "stop_token_id", "error_message", "score")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    index: int
    reason: FinishReason
    stop_token_id: int
    error_message: str
    score: float
    def __init__(self, handle: _Optional[int] = ..., index: _Optional[int] = ..., reason: _Optional[_Union[FinishReason, str]] = ..., stop_token_id: _Optional[int] = ..., error_message: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class FinishedRequest(_message.Message):
    __slots__ = ("handle", "code", "message", "retry_after_ns", "usage", "timings", "exceeded_window", "speculation", "arithmetic")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_NS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    EXCEEDED_WINDOW_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    handle: int
    code: int
    message: str
    retry_after_ns: int
    usage: Usage
    timings: Timings
    exceeded_window: int
    speculation: SpeculationUse
    arithmetic: str
    def __init__(self, handle: _Optional[int] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., retry_after_ns: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., exceeded_window: _Optional[int] = ..., speculation: _Optional[_Union[SpeculationUse, _Mapping]] = ..., arithmetic: _Optional[str] = ...) -> None: ...

class SpeculationUse(_message.Message):
    __slots__ = ("num_runs", "num_drafts", "num_accepted", "num_predicted", "num_predicted_accepted")
    NUM_RUNS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREDICTED_FIELD_NUMBER: _ClassVar[int]
    NUM_PREDICTED_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    num_runs: int
    num_drafts: int
    num_accepted: int
    num_predicted: int
    num_predicted_accepted: int
    def __init__(self, num_runs: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_predicted: _Optional[int] = ..., num_predicted_accepted: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queued_ns", "prefill_ns", "decode_ns", "preempted_ns")
    QUEUED_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    PREEMPTED_NS_FIELD_NUMBER: _ClassVar[int]
    queued_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int
    def __init__(self, queued_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., preempted_ns: _Optional[int] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "effective_max_model_len", "takes_snapshot_positions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    TAKES_SNAPSHOT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    model: _common_pb2.ModelInfo
    effective_max_model_len: int
    takes_snapshot_positions: bool
    def __init__(self, model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., effective_max_model_len: _Optional[int] = ..., takes_snapshot_positions: _Optional[bool] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name", "path", "replace", "at_first_use")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    AT_FIRST_USE_FIELD_NUMBER: _ClassVar[int]
    name: str
    path: str
    replace: bool
    at_first_use: bool
    def __init__(self, name: _Optional[str] = ..., path: _Optional[str] = ..., replace: _Optional[bool] = ..., at_first_use: _Optional[bool] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("adapter",)
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.Adapter
    def __init__(self, adapter: _Optional[_Union[_common_pb2.Adapter, _Mapping]] = ...) -> None: ...

class UnloadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadAdapterResponse(_message.Message):
    __slots__ = ("num_requests",)
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    def __init__(self, num_requests: _Optional[int] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[LoadedAdapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[LoadedAdapter, _Mapping]]] = ...) -> None: ...

class LoadedAdapter(_message.Message):
    __slots__ = ("adapter", "num_requests", "is_leaving")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    adapter: _common_pb2.Adapter
    num_requests: int
    is_leaving: bool
    def __init__(self, adapter: _Optional[_Union[_common_pb2.Adapter, _Mapping]] = ..., num_requests: _Optional[int] = ..., is_leaving: _Optional[bool] = ...) -> None: ...

class ClearCacheRequest(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...

class ClearCacheResponse(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[ClearedCache]
    def __init__(self, workers: _Optional[_Iterable[_Union[ClearedCache, _Mapping]]] = ...) -> None: ...

class ClearedCache(_message.Message):
    __slots__ = ("worker", "fault")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    fault: str
    def __init__(self, worker: _Optional[str] = ..., fault: _Optional[str] = ...) -> None: ...

class DrainWorkerRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: str
    def __init__(self, worker: _Optional[str] = ...) -> None: ...

class DrainWorkerResponse(_message.Message):
    __slots__ = ("num_requests",)
    NUM_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    num_requests: int
    def __init__(self, num_requests: _Optional[int] = ...) -> None: ...

class ReportLauncherRequest(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: _stats_pb2.LauncherState
    def __init__(self, state: _Optional[_Union[_stats_pb2.LauncherState, _Mapping]] = ...) -> None: ...

class ReportLauncherResponse(_message.Message):
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

class RegisterRequest(_message.Message):
    __slots__ = ("join", "heartbeat")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    join: Join
    heartbeat: Heartbeat
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("epoch", "address", "model", "capacity", "role")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    address: str
    model: _common_pb2.ModelInfo
    capacity: _common_pb2.WorkerCapacity
    role: str
    def __init__(self, epoch: _Optional[int] = ..., address: _Optional[str] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., role: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: WorkerState
    def __init__(self, state: _Optional[_Union[WorkerState, str]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("accepted", "heartbeat", "drained")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    heartbeat: Heartbeat
    drained: Drained
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("heartbeat_interval_ns",)
    HEARTBEAT_INTERVAL_NS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_ns: int
    def __init__(self, heartbeat_interval_ns: _Optional[int] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportStartupRequest(_message.Message):
    __slots__ = ("phase", "num_done", "num_total")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    NUM_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOTAL_FIELD_NUMBER: _ClassVar[int]
    phase: StartupPhase
    num_done: int
    num_total: int
    def __init__(self, phase: _Optional[_Union[StartupPhase, str]] = ..., num_done: _Optional[int] = ..., num_total: _Optional[int] = ...) -> None: ...

class ReportStartupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
