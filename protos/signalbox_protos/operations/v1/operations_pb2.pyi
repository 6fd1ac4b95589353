from signalbox_protos.operations.v1 import model_launcher_pb2 as _model_launcher_pb2
from signalbox_protos.scheduler.v1 import explain_pb2 as _explain_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as _stats_pb2
from signalbox_protos.scheduler.v1 import watch_pb2 as _watch_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("scheduler", "frame", "lost", "recording")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RECORDING_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    frame: _watch_pb2.Frame
    lost: str
    recording: Recording
    def __init__(self, scheduler: _Optional[str] = ..., frame: _Optional[_Union[_watch_pb2.Frame, _Mapping]] = ..., lost: _Optional[str] = ..., recording: _Optional[_Union[Recording, _Mapping]] = ...) -> None: ...

class Recording(_message.Message):
    __slots__ = ("begins_at_ns", "ends_at_ns")
    BEGINS_AT_NS_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_NS_FIELD_NUMBER: _ClassVar[int]
    begins_at_ns: int
    ends_at_ns: int
    def __init__(self, begins_at_ns: _Optional[int] = ..., ends_at_ns: _Optional[int] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("request_id", "request_number", "scheduler")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    request_number: int
    scheduler: str
    def __init__(self, request_id: _Optional[str] = ..., request_number: _Optional[int] = ..., scheduler: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("scheduler", "explanation")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    explanation: _explain_pb2.ExplainResponse
    def __init__(self, scheduler: _Optional[str] = ..., explanation: _Optional[_Union[_explain_pb2.ExplainResponse, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("max_sessions",)
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    max_sessions: int
    def __init__(self, max_sessions: _Optional[int] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("schedulers",)
    SCHEDULERS_FIELD_NUMBER: _ClassVar[int]
    schedulers: _containers.RepeatedCompositeFieldContainer[SchedulerSessions]
    def __init__(self, schedulers: _Optional[_Iterable[_Union[SchedulerSessions, _Mapping]]] = ...) -> None: ...

class SchedulerSessions(_message.Message):
    __slots__ = ("scheduler", "sessions", "lost")
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    scheduler: str
    sessions: _containers.RepeatedCompositeFieldContainer[_stats_pb2.SessionSummary]
    lost: str
    def __init__(self, scheduler: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[_stats_pb2.SessionSummary, _Mapping]]] = ..., lost: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("model", "num_live_requests", "num_waiting_requests")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_LIVE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    model: _model_launcher_pb2.LaunchedModel
    num_live_requests: int
    num_waiting_requests: int
    def __init__(self, model: _Optional[_Union[_model_launcher_pb2.LaunchedModel, _Mapping]] = ..., num_live_requests: _Optional[int] = ..., num_waiting_requests: _Optional[int] = ...) -> None: ...

class OperationsServiceLoadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class OperationsServiceLoadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OperationsServiceUnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class OperationsServiceUnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
