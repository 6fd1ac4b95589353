from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as _scheduler_pb2
from signalbox_protos.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("now", "header", "router_said", "router_left", "worker_joined", "worker_drains", "worker_left", "step_planned", "step_sent", "step_answered", "tick", "grammar_prepared", "adapters_changed", "cache_cleared")
    NOW_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ROUTER_SAID_FIELD_NUMBER: _ClassVar[int]
    ROUTER_LEFT_FIELD_NUMBER: _ClassVar[int]
    WORKER_JOINED_FIELD_NUMBER: _ClassVar[int]
    WORKER_DRAINS_FIELD_NUMBER: _ClassVar[int]
    WORKER_LEFT_FIELD_NUMBER: _ClassVar[int]
    STEP_PLANNED_FIELD_NUMBER: _ClassVar[int]
    STEP_SENT_FIELD_NUMBER: _ClassVar[int]
    STEP_ANSWERED_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_PREPARED_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    CACHE_CLEARED_FIELD_NUMBER: _ClassVar[int]
    now: float
    header: RecordHeader
    router_said: RouterSaid
    router_left: RouterLeft
    worker_joined: WorkerJoined
    worker_drains: WorkerDrains
    worker_left: WorkerLeft
    step_planned: StepPlanned
    step_sent: StepSent
    step_answered: StepAnswered
    tick: Tick
    grammar_prepared: GrammarPrepared
    adapters_changed: AdaptersChanged
    cache_cleared: CacheCleared
    def __init__(self, now: _Optional[float] = ..., header: _Optional[_Union[RecordHeader, _Mapping]] = ..., router_said: _Optional[_Union[RouterSaid, _Mapping]] = ..., router_left: _Optional[_Union[RouterLeft, _Mapping]] = ..., worker_joined: _Optional[_Union[WorkerJoined, _Mapping]] = ..., worker_drains: _Optional[_Union[WorkerDrains, _Mapping]] = ..., worker_left: _Optional[_Union[WorkerLeft, _Mapping]] = ..., step_planned: _Optional[_Union[StepPlanned, _Mapping]] = ..., step_sent: _Optional[_Union[StepSent, _Mapping]] = ..., step_answered: _Optional[_Union[StepAnswered, _Mapping]] = ..., tick: _Optional[_Union[Tick, _Mapping]] = ..., grammar_prepared: _Optional[_Union[GrammarPrepared, _Mapping]] = ..., adapters_changed: _Optional[_Union[AdaptersChanged, _Mapping]] = ..., cache_cleared: _Optional[_Union[CacheCleared, _Mapping]] = ...) -> None: ...

class RecordHeader(_message.Message):
    __slots__ = ("version", "signalbox_version", "config_json", "next_seq_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNALBOX_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQ_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    signalbox_version: str
    config_json: str
    next_seq_id: int
    def __init__(self, version: _Optional[int] = ..., signalbox_version: _Optional[str] = ..., config_json: _Optional[str] = ..., next_seq_id: _Optional[int] = ...) -> None: ...

class RouterSaid(_message.Message):
    __slots__ = ("router", "request")
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    router: int
    request: _scheduler_pb2.ConnectRequest
    def __init__(self, router: _Optional[int] = ..., request: _Optional[_Union[_scheduler_pb2.ConnectRequest, _Mapping]] = ...) -> None: ...

class RouterLeft(_message.Message):
    __slots__ = ("router",)
    ROUTER_FIELD_NUMBER: _ClassVar[int]
    router: int
    def __init__(self, router: _Optional[int] = ...) -> None: ...

class WorkerJoined(_message.Message):
    __slots__ = ("worker", "address", "epoch", "model", "capacity", "certified_name", "role")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    address: str
    epoch: int
    model: _common_pb2.ModelInfo
    capacity: _common_pb2.WorkerCapacity
    certified_name: str
    role: str
    def __init__(self, worker: _Optional[int] = ..., address: _Optional[str] = ..., epoch: _Optional[int] = ..., model: _Optional[_Union[_common_pb2.ModelInfo, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., certified_name: _Optional[str] = ..., role: _Optional[str] = ...) -> None: ...

class WorkerDrains(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: int
    def __init__(self, worker: _Optional[int] = ...) -> None: ...

class WorkerLeft(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: int
    def __init__(self, worker: _Optional[int] = ...) -> None: ...

class StepPlanned(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: int
    def __init__(self, worker: _Optional[int] = ...) -> None: ...

class StepSent(_message.Message):
    __slots__ = ("worker", "request")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    worker: int
    request: _worker_pb2.ExecuteModelRequest
    def __init__(self, worker: _Optional[int] = ..., request: _Optional[_Union[_worker_pb2.ExecuteModelRequest, _Mapping]] = ...) -> None: ...

class StepAnswered(_message.Message):
    __slots__ = ("worker", "response")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    worker: int
    response: _worker_pb2.ExecuteModelResponse
    def __init__(self, worker: _Optional[int] = ..., response: _Optional[_Union[_worker_pb2.ExecuteModelResponse, _Mapping]] = ...) -> None: ...

class GrammarPrepared(_message.Message):
    __slots__ = ("worker", "structured_output", "fault")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    worker: int
    structured_output: _common_pb2.StructuredOutput
    fault: str
    def __init__(self, worker: _Optional[int] = ..., structured_output: _Optional[_Union[_common_pb2.StructuredOutput, _Mapping]] = ..., fault: _Optional[str] = ...) -> None: ...

class AdaptersChanged(_message.Message):
    __slots__ = ("adapters",)
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[_common_pb2.Adapter]
    def __init__(self, adapters: _Optional[_Iterable[_Union[_common_pb2.Adapter, _Mapping]]] = ...) -> None: ...

class Tick(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CacheCleared(_message.Message):
    __slots__ = ("tenant",)
    TENANT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    def __init__(self, tenant: _Optional[str] = ...) -> None: ...
