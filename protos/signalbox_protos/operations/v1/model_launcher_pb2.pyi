from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchModelsResponse(_message.Message):
    __slots__ = ("models", "revision")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[LaunchedModel]
    revision: int
    def __init__(self, models: _Optional[_Iterable[_Union[LaunchedModel, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class LaunchedModel(_message.Message):
    __slots__ = ("name", "other_names", "state", "scheduler", "task", "max_model_len", "architecture", "file_bytes", "memory_bytes", "reason", "retry_after_ns", "is_kept", "num_starts", "last_start_ns")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LaunchedModel.State]
        STATE_UNLOADED: _ClassVar[LaunchedModel.State]
        STATE_WAITING: _ClassVar[LaunchedModel.State]
        STATE_LOADING: _ClassVar[LaunchedModel.State]
        STATE_LOADED: _ClassVar[LaunchedModel.State]
        STATE_DRAINING: _ClassVar[LaunchedModel.State]
        STATE_FAILED: _ClassVar[LaunchedModel.State]
    STATE_UNSPECIFIED: LaunchedModel.State
    STATE_UNLOADED: LaunchedModel.State
    STATE_WAITING: LaunchedModel.State
    STATE_LOADING: LaunchedModel.State
    STATE_LOADED: LaunchedModel.State
    STATE_DRAINING: LaunchedModel.State
    STATE_FAILED: LaunchedModel.State
    NAME_FIELD_NUMBER: _ClassVar[int]
    OTHER_NAMES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_NS_FIELD_NUMBER: _ClassVar[int]
    IS_KEPT_FIELD_NUMBER: _ClassVar[int]
    NUM_STARTS_FIELD_NUMBER: _ClassVar[int]
    LAST_START_NS_FIELD_NUMBER: _ClassVar[int]
    name: str
    other_names: _containers.RepeatedScalarFieldContainer[str]
    state: LaunchedModel.State
    scheduler: str
    task: str
    max_model_len: int
    architecture: str
    file_bytes: int
    memory_bytes: int
    reason: str
    retry_after_ns: int
    is_kept: bool
    num_starts: int
    last_start_ns: int
    def __init__(self, name: _Optional[str] = ..., other_names: _Optional[_Iterable[str]] = ..., state: _Optional[_Union[LaunchedModel.State, str]] = ..., scheduler: _Optional[str] = ..., task: _Optional[str] = ..., max_model_len: _Optional[int] = ..., architecture: _Optional[str] = ..., file_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., reason: _Optional[str] = ..., retry_after_ns: _Optional[int] = ..., is_kept: _Optional[bool] = ..., num_starts: _Optional[int] = ..., last_start_ns: _Optional[int] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("waited_ns", "started_ns")
    WAITED_NS_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    waited_ns: int
    started_ns: int
    def __init__(self, waited_ns: _Optional[int] = ..., started_ns: _Optional[int] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportUseRequest(_message.Message):
    __slots__ = ("uses", "revision")
    USES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    uses: _containers.RepeatedCompositeFieldContainer[ModelUse]
    revision: int
    def __init__(self, uses: _Optional[_Iterable[_Union[ModelUse, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class ModelUse(_message.Message):
    __slots__ = ("name", "num_live", "num_waiting")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_LIVE_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_live: int
    num_waiting: int
    def __init__(self, name: _Optional[str] = ..., num_live: _Optional[int] = ..., num_waiting: _Optional[int] = ...) -> None: ...

class ReportUseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
