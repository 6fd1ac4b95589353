from protos.common.v1 import common_pb2 as _common_pb2
from protos.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankCommand(_message.Message):
    __slots__ = ("start", "profile", "init_cache_engine", "apply", "execute", "sync")
    START_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    INIT_CACHE_ENGINE_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    start: RankStart
    profile: RankProfile
    init_cache_engine: RankCache
    apply: _worker_pb2.ExecuteModelRequest
    execute: RankBatch
    sync: RankSync
    def __init__(self, start: _Optional[_Union[RankStart, _Mapping]] = ..., profile: _Optional[_Union[RankProfile, _Mapping]] = ..., init_cache_engine: _Optional[_Union[RankCache, _Mapping]] = ..., apply: _Optional[_Union[_worker_pb2.ExecuteModelRequest, _Mapping]] = ..., execute: _Optional[_Union[RankBatch, _Mapping]] = ..., sync: _Optional[_Union[RankSync, _Mapping]] = ...) -> None: ...

class RankStart(_message.Message):
    __slots__ = ("model_config_json", "cache_config_json", "parallel_config_json", "device_config_json")
    MODEL_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    CACHE_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    model_config_json: str
    cache_config_json: str
    parallel_config_json: str
    device_config_json: str
    def __init__(self, model_config_json: _Optional[str] = ..., cache_config_json: _Optional[str] = ..., parallel_config_json: _Optional[str] = ..., device_config_json: _Optional[str] = ...) -> None: ...

class RankProfile(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankCache(_message.Message):
    __slots__ = ("num_gpu_blocks", "num_cpu_blocks")
    NUM_GPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_gpu_blocks: int
    num_cpu_blocks: int
    def __init__(self, num_gpu_blocks: _Optional[int] = ..., num_cpu_blocks: _Optional[int] = ...) -> None: ...

class RankBatch(_message.Message):
    __slots__ = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "drawing_tokens", "prompt_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SLOT_MAPPING_FIELD_NUMBER: _ClassVar[int]
    QUERY_START_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TABLES_FIELD_NUMBER: _ClassVar[int]
    DRAWING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: bytes
    positions: bytes
    slot_mapping: bytes
    query_start: bytes
    context_lens: bytes
    block_tables: bytes
    drawing_tokens: bytes
    prompt_tokens: bytes
    def __init__(self, token_ids: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., slot_mapping: _Optional[bytes] = ..., query_start: _Optional[bytes] = ..., context_lens: _Optional[bytes] = ..., block_tables: _Optional[bytes] = ..., drawing_tokens: _Optional[bytes] = ..., prompt_tokens: _Optional[bytes] = ...) -> None: ...

class RankSync(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankReport(_message.Message):
    __slots__ = ("joining", "loaded", "capacity", "cache_ready", "failed", "log_line", "in_step", "command")
    JOINING_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_READY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOG_LINE_FIELD_NUMBER: _ClassVar[int]
    IN_STEP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    joining: RankJoining
    loaded: RankLoaded
    capacity: _common_pb2.WorkerCapacity
    cache_ready: RankCacheReady
    failed: RankFailure
    log_line: RankLogLine
    in_step: RankInStep
    command: int
    def __init__(self, joining: _Optional[_Union[RankJoining, _Mapping]] = ..., loaded: _Optional[_Union[RankLoaded, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., cache_ready: _Optional[_Union[RankCacheReady, _Mapping]] = ..., failed: _Optional[_Union[RankFailure, _Mapping]] = ..., log_line: _Optional[_Union[RankLogLine, _Mapping]] = ..., in_step: _Optional[_Union[RankInStep, _Mapping]] = ..., command: _Optional[int] = ...) -> None: ...

class RankJoining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankLoaded(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankCacheReady(_message.Message):
    __slots__ = ("num_graphs",)
    NUM_GRAPHS_FIELD_NUMBER: _ClassVar[int]
    num_graphs: int
    def __init__(self, num_graphs: _Optional[int] = ...) -> None: ...

class RankInStep(_message.Message):
    __slots__ = ("num_collectives",)
    NUM_COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    num_collectives: int
    def __init__(self, num_collectives: _Optional[int] = ...) -> None: ...

class RankFailure(_message.Message):
    __slots__ = ("message", "out_of_memory")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_MEMORY_FIELD_NUMBER: _ClassVar[int]
    message: str
    out_of_memory: bool
    def __init__(self, message: _Optional[str] = ..., out_of_memory: _Optional[bool] = ...) -> None: ...

class RankLogLine(_message.Message):
    __slots__ = ("level", "logger", "message")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LOGGER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    level: int
    logger: str
    message: str
    def __init__(self, level: _Optional[int] = ..., logger: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
