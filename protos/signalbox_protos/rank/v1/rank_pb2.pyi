from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("hello", "capacity", "message", "command")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    hello: RankHello
    capacity: _common_pb2.WorkerCapacity
    message: RankMessage
    command: int
    def __init__(self, hello: _Optional[_Union[RankHello, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., message: _Optional[_Union[RankMessage, _Mapping]] = ..., command: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("execute", "apply", "settle", "message")
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    execute: RankBatch
    apply: _worker_pb2.ExecuteModelRequest
    settle: RankSettlement
    message: RankMessage
    def __init__(self, execute: _Optional[_Union[RankBatch, _Mapping]] = ..., apply: _Optional[_Union[_worker_pb2.ExecuteModelRequest, _Mapping]] = ..., settle: _Optional[_Union[RankSettlement, _Mapping]] = ..., message: _Optional[_Union[RankMessage, _Mapping]] = ...) -> None: ...

class RankMessage(_message.Message):
    __slots__ = ("name", "fields", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    fields: bytes
    data: bytes
    def __init__(self, name: _Optional[str] = ..., fields: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class RankHello(_message.Message):
    __slots__ = ("rank", "versions", "address", "pid", "told")
    RANK_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    rank: int
    versions: str
    address: str
    pid: int
    told: bytes
    def __init__(self, rank: _Optional[int] = ..., versions: _Optional[str] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., told: _Optional[bytes] = ...) -> None: ...

class GreetRequest(_message.Message):
    __slots__ = ("rank", "payload")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    rank: int
    payload: bytes
    def __init__(self, rank: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class GreetResponse(_message.Message):
    __slots__ = ("rank",)
    RANK_FIELD_NUMBER: _ClassVar[int]
    rank: int
    def __init__(self, rank: _Optional[int] = ...) -> None: ...

class RankBatch(_message.Message):
    __slots__ = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "drawing_tokens", "prompt_tokens", "adapters", "logit_tokens", "suppressed", "suppressed_ends", "states")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAPPING_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLES_FIELD_NUMBER: _ClassVar[int]
    DRAWING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_ENDS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    positions: bytes
    slot_mapping: bytes
    query_start: bytes
    context_lens: bytes
    block_tables: bytes
    drawing_tokens: bytes
    prompt_tokens: bytes
    adapters: bytes
    logit_tokens: bytes
    suppressed: bytes
    suppressed_ends: bytes
    states: RankStates
    def __init__(self, token_ids: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., slot_mapping: _Optional[bytes] = ..., query_start: _Optional[bytes] = ..., context_lens: _Optional[bytes] = ..., block_tables: _Optional[bytes] = ..., drawing_tokens: _Optional[bytes] = ..., prompt_tokens: _Optional[bytes] = ..., adapters: _Optional[bytes] = ..., logit_tokens: _Optional[bytes] = ..., suppressed: _Optional[bytes] = ..., suppressed_ends: _Optional[bytes] = ..., states: _Optional[_Union[RankStates, _Mapping]] = ...) -> None: ...

class RankStates(_message.Message):
    __slots__ = ("first_runs", "run_start", "reads", "writes")
    FIRST_RUNS_FIELD_NUMBER: _ClassVar[int]
    RUN_START_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    first_runs: bytes
    run_start: bytes
    reads: bytes
    writes: bytes
    def __init__(self, first_runs: _Optional[bytes] = ..., run_start: _Optional[bytes] = ..., reads: _Optional[bytes] = ..., writes: _Optional[bytes] = ...) -> None: ...

class RankSettlement(_message.Message):
    __slots__ = ("rows", "states")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    rows: bytes
    states: RankStates
    def __init__(self, rows: _Optional[bytes] = ..., states: _Optional[_Union[RankStates, _Mapping]] = ...) -> None: ...

class RankFailure(_message.Message):
    __slots__ = ("message", "out_of_memory")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    message: str
    out_of_memory: bool
    def __init__(self, message: _Optional[str] = ..., out_of_memory: _Optional[bool] = ...) -> None: ...

class SetKeyRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class SetKeyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetKeyRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class GetKeyResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class PassRequest(_message.Message):
    __slots__ = ("command", "hidden_states", "failed", "rank", "stages")
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_STATES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    command: int
    hidden_states: bytes
    failed: RankFailure
    rank: int
    stages: _containers.RepeatedCompositeFieldContainer[_common_pb2.StageTimings]
    def __init__(self, command: _Optional[int] = ..., hidden_states: _Optional[bytes] = ..., failed: _Optional[_Union[RankFailure, _Mapping]] = ..., rank: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[_common_pb2.StageTimings, _Mapping]]] = ...) -> None: ...

class PassResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
