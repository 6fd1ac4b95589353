from signalbox_protos.common.v1 import common_pb2 as _common_pb2
from signalbox_protos.worker.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JoinRequest(_message.Message):
    __slots__ = ("hello", "loaded", "capacity", "cache_ready", "failed", "log_line", "in_step", "adapter_opened", "met", "ended_moves", "blocks_opened", "block_copied", "command")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_READY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOG_LINE_FIELD_NUMBER: _ClassVar[int]
    IN_STEP_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_OPENED_FIELD_NUMBER: _ClassVar[int]
    MET_FIELD_NUMBER: _ClassVar[int]
    ENDED_MOVES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_OPENED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_COPIED_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    hello: RankHello
    loaded: RankLoaded
    capacity: _common_pb2.WorkerCapacity
    cache_ready: RankCacheReady
    failed: RankFailure
    log_line: RankLogLine
    in_step: RankInStep
    adapter_opened: RankAdapterOpened
    met: RankMet
    ended_moves: RankEndedMoves
    blocks_opened: RankOpenBlocks
    block_copied: RankCopiedBlock
    command: int
    def __init__(self, hello: _Optional[_Union[RankHello, _Mapping]] = ..., loaded: _Optional[_Union[RankLoaded, _Mapping]] = ..., capacity: _Optional[_Union[_common_pb2.WorkerCapacity, _Mapping]] = ..., cache_ready: _Optional[_Union[RankCacheReady, _Mapping]] = ..., failed: _Optional[_Union[RankFailure, _Mapping]] = ..., log_line: _Optional[_Union[RankLogLine, _Mapping]] = ..., in_step: _Optional[_Union[RankInStep, _Mapping]] = ..., adapter_opened: _Optional[_Union[RankAdapterOpened, _Mapping]] = ..., met: _Optional[_Union[RankMet, _Mapping]] = ..., ended_moves: _Optional[_Union[RankEndedMoves, _Mapping]] = ..., blocks_opened: _Optional[_Union[RankOpenBlocks, _Mapping]] = ..., block_copied: _Optional[_Union[RankCopiedBlock, _Mapping]] = ..., command: _Optional[int] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("start", "profile", "init_cache_engine", "apply", "execute", "sync", "open_adapter", "forget_adapter", "add_adapter", "remove_adapter", "meet", "ended_moves", "remove_block", "open_blocks", "close_blocks", "copy_block")
    START_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    INIT_CACHE_ENGINE_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    OPEN_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    FORGET_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ADD_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    REMOVE_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    MEET_FIELD_NUMBER: _ClassVar[int]
    ENDED_MOVES_FIELD_NUMBER: _ClassVar[int]
    REMOVE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    OPEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    CLOSE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COPY_BLOCK_FIELD_NUMBER: _ClassVar[int]
    start: RankStart
    profile: RankProfile
    init_cache_engine: RankCache
    apply: _worker_pb2.ExecuteModelRequest
    execute: RankBatch
    sync: RankSync
    open_adapter: RankOpenAdapter
    forget_adapter: RankForgetAdapter
    add_adapter: RankAddAdapter
    remove_adapter: RankRemoveAdapter
    meet: RankMeet
    ended_moves: RankAskMoves
    remove_block: RankRemoveBlock
    open_blocks: RankOpenBlocks
    close_blocks: RankCloseBlocks
    copy_block: RankCopyBlock
    def __init__(self, start: _Optional[_Union[RankStart, _Mapping]] = ..., profile: _Optional[_Union[RankProfile, _Mapping]] = ..., init_cache_engine: _Optional[_Union[RankCache, _Mapping]] = ..., apply: _Optional[_Union[_worker_pb2.ExecuteModelRequest, _Mapping]] = ..., execute: _Optional[_Union[RankBatch, _Mapping]] = ..., sync: _Optional[_Union[RankSync, _Mapping]] = ..., open_adapter: _Optional[_Union[RankOpenAdapter, _Mapping]] = ..., forget_adapter: _Optional[_Union[RankForgetAdapter, _Mapping]] = ..., add_adapter: _Optional[_Union[RankAddAdapter, _Mapping]] = ..., remove_adapter: _Optional[_Union[RankRemoveAdapter, _Mapping]] = ..., meet: _Optional[_Union[RankMeet, _Mapping]] = ..., ended_moves: _Optional[_Union[RankAskMoves, _Mapping]] = ..., remove_block: _Optional[_Union[RankRemoveBlock, _Mapping]] = ..., open_blocks: _Optional[_Union[RankOpenBlocks, _Mapping]] = ..., close_blocks: _Optional[_Union[RankCloseBlocks, _Mapping]] = ..., copy_block: _Optional[_Union[RankCopyBlock, _Mapping]] = ...) -> None: ...

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
    told: RankStart
    def __init__(self, rank: _Optional[int] = ..., versions: _Optional[str] = ..., address: _Optional[str] = ..., pid: _Optional[int] = ..., told: _Optional[_Union[RankStart, _Mapping]] = ...) -> None: ...

class RankMeet(_message.Message):
    __slots__ = ("addresses", "measuring")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    MEASURING_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedCompositeFieldContainer[RankAddress]
    measuring: int
    def __init__(self, addresses: _Optional[_Iterable[_Union[RankAddress, _Mapping]]] = ..., measuring: _Optional[int] = ...) -> None: ...

class RankMet(_message.Message):
    __slots__ = ("faults", "links")
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedScalarFieldContainer[str]
    links: _containers.RepeatedCompositeFieldContainer[RankLink]
    def __init__(self, faults: _Optional[_Iterable[str]] = ..., links: _Optional[_Iterable[_Union[RankLink, _Mapping]]] = ...) -> None: ...

class RankLink(_message.Message):
    __slots__ = ("rank", "round_trip_ns", "bytes_per_second")
    RANK_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_NS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    rank: int
    round_trip_ns: int
    bytes_per_second: int
    def __init__(self, rank: _Optional[int] = ..., round_trip_ns: _Optional[int] = ..., bytes_per_second: _Optional[int] = ...) -> None: ...

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

class RankLoaded(_message.Message):
    __slots__ = ("fingerprint", "arithmetic", "adapters")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ARITHMETIC_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    fingerprint: str
    arithmetic: str
    adapters: str
    def __init__(self, fingerprint: _Optional[str] = ..., arithmetic: _Optional[str] = ..., adapters: _Optional[str] = ...) -> None: ...

class RankStart(_message.Message):
    __slots__ = ("model", "cache", "device", "parallel", "addresses", "disk", "shared")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    model: RankModelConfig
    cache: RankCacheConfig
    device: RankDeviceConfig
    parallel: RankParallelConfig
    addresses: _containers.RepeatedCompositeFieldContainer[RankAddress]
    disk: RankDiskConfig
    shared: RankSharedConfig
    def __init__(self, model: _Optional[_Union[RankModelConfig, _Mapping]] = ..., cache: _Optional[_Union[RankCacheConfig, _Mapping]] = ..., device: _Optional[_Union[RankDeviceConfig, _Mapping]] = ..., parallel: _Optional[_Union[RankParallelConfig, _Mapping]] = ..., addresses: _Optional[_Iterable[_Union[RankAddress, _Mapping]]] = ..., disk: _Optional[_Union[RankDiskConfig, _Mapping]] = ..., shared: _Optional[_Union[RankSharedConfig, _Mapping]] = ...) -> None: ...

class RankAddress(_message.Message):
    __slots__ = ("address", "certified_name")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFIED_NAME_FIELD_NUMBER: _ClassVar[int]
    address: str
    certified_name: str
    def __init__(self, address: _Optional[str] = ..., certified_name: _Optional[str] = ...) -> None: ...

class RankModelConfig(_message.Message):
    __slots__ = ("served_model_name", "model", "revision", "dtype", "quantization", "load_format", "model_plugin", "model_impl", "trust_remote_code", "generation_config", "override_generation_config", "max_model_len", "lora", "max_lora_rank", "adapter_dir", "max_cpu_loras", "runner", "convert")
    SERVED_MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_FORMAT_FIELD_NUMBER: _ClassVar[int]
    MODEL_PLUGIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_IMPL_FIELD_NUMBER: _ClassVar[int]
    TRUST_REMOTE_CODE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_GENERATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    LORA_FIELD_NUMBER: _ClassVar[int]
    MAX_LORA_RANK_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIR_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_LORAS_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    CONVERT_FIELD_NUMBER: _ClassVar[int]
    served_model_name: _containers.RepeatedScalarFieldContainer[str]
    model: str
    revision: str
    dtype: str
    quantization: str
    load_format: str
    model_plugin: str
    model_impl: str
    trust_remote_code: bool
    generation_config: str
    override_generation_config: str
    max_model_len: int
    lora: _containers.RepeatedScalarFieldContainer[str]
    max_lora_rank: int
    adapter_dir: str
    max_cpu_loras: int
    runner: str
    convert: str
    def __init__(self, served_model_name: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ..., load_format: _Optional[str] = ..., model_plugin: _Optional[str] = ..., model_impl: _Optional[str] = ..., trust_remote_code: _Optional[bool] = ..., generation_config: _Optional[str] = ..., override_generation_config: _Optional[str] = ..., max_model_len: _Optional[int] = ..., lora: _Optional[_Iterable[str]] = ..., max_lora_rank: _Optional[int] = ..., adapter_dir: _Optional[str] = ..., max_cpu_loras: _Optional[int] = ..., runner: _Optional[str] = ..., convert: _Optional[str] = ...) -> None: ...

class RankCacheConfig(_message.Message):
    __slots__ = ("max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_dtype", "swap_space", "gpu_memory_utilization", "kv_cache_memory")
    MAX_NUM_SEQS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BATCHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    SWAP_SPACE_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_dtype: str
    swap_space: float
    gpu_memory_utilization: float
    kv_cache_memory: float
    def __init__(self, max_num_seqs: _Optional[int] = ..., max_num_batched_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., kv_cache_dtype: _Optional[str] = ..., swap_space: _Optional[float] = ..., gpu_memory_utilization: _Optional[float] = ..., kv_cache_memory: _Optional[float] = ...) -> None: ...

class RankDeviceConfig(_message.Message):
    __slots__ = ("device", "num_threads", "cpu_backend", "attention_backend", "sampling_backend", "enforce_eager", "max_cudagraph_capture_size", "kernel_cache", "linear_backend")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    CPU_BACKEND_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BACKEND_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_BACKEND_FIELD_NUMBER: _ClassVar[int]
    ENFORCE_EAGER_FIELD_NUMBER: _ClassVar[int]
    MAX_CUDAGRAPH_CAPTURE_SIZE_FIELD_NUMBER: _ClassVar[int]
    KERNEL_CACHE_FIELD_NUMBER: _ClassVar[int]
    LINEAR_BACKEND_FIELD_NUMBER: _ClassVar[int]
    device: str
    num_threads: int
    cpu_backend: str
    attention_backend: str
    sampling_backend: str
    enforce_eager: bool
    max_cudagraph_capture_size: int
    kernel_cache: str
    linear_backend: str
    def __init__(self, device: _Optional[str] = ..., num_threads: _Optional[int] = ..., cpu_backend: _Optional[str] = ..., attention_backend: _Optional[str] = ..., sampling_backend: _Optional[str] = ..., enforce_eager: _Optional[bool] = ..., max_cudagraph_capture_size: _Optional[int] = ..., kernel_cache: _Optional[str] = ..., linear_backend: _Optional[str] = ...) -> None: ...

class RankDiskConfig(_message.Message):
    __slots__ = ("kv_disk", "kv_disk_space", "kv_disk_daily_writes")
    KV_DISK_FIELD_NUMBER: _ClassVar[int]
    KV_DISK_SPACE_FIELD_NUMBER: _ClassVar[int]
    KV_DISK_DAILY_WRITES_FIELD_NUMBER: _ClassVar[int]
    kv_disk: str
    kv_disk_space: float
    kv_disk_daily_writes: float
    def __init__(self, kv_disk: _Optional[str] = ..., kv_disk_space: _Optional[float] = ..., kv_disk_daily_writes: _Optional[float] = ...) -> None: ...

class RankSharedConfig(_message.Message):
    __slots__ = ("kv_store", "kv_store_key", "kv_store_password")
    KV_STORE_FIELD_NUMBER: _ClassVar[int]
    KV_STORE_KEY_FIELD_NUMBER: _ClassVar[int]
    KV_STORE_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    kv_store: str
    kv_store_key: str
    kv_store_password: str
    def __init__(self, kv_store: _Optional[str] = ..., kv_store_key: _Optional[str] = ..., kv_store_password: _Optional[str] = ...) -> None: ...

class RankParallelConfig(_message.Message):
    __slots__ = ("rank", "tensor_parallel_size", "pipeline_parallel_size", "layer_partition", "local_rank", "local_size", "collective_host", "is_placed")
    RANK_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_HOST_FIELD_NUMBER: _ClassVar[int]
    IS_PLACED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    layer_partition: _containers.RepeatedScalarFieldContainer[int]
    local_rank: int
    local_size: int
    collective_host: str
    is_placed: bool
    def __init__(self, rank: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., pipeline_parallel_size: _Optional[int] = ..., layer_partition: _Optional[_Iterable[int]] = ..., local_rank: _Optional[int] = ..., local_size: _Optional[int] = ..., collective_host: _Optional[str] = ..., is_placed: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "drawing_tokens", "prompt_tokens", "adapters", "logit_tokens", "suppressed", "suppressed_ends")
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
    def __init__(self, token_ids: _Optional[bytes] = ..., positions: _Optional[bytes] = ..., slot_mapping: _Optional[bytes] = ..., query_start: _Optional[bytes] = ..., context_lens: _Optional[bytes] = ..., block_tables: _Optional[bytes] = ..., drawing_tokens: _Optional[bytes] = ..., prompt_tokens: _Optional[bytes] = ..., adapters: _Optional[bytes] = ..., logit_tokens: _Optional[bytes] = ..., suppressed: _Optional[bytes] = ..., suppressed_ends: _Optional[bytes] = ...) -> None: ...

class RankSync(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankAskMoves(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankEndedMoves(_message.Message):
    __slots__ = ("results", "is_open")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[_worker_pb2.MoveResult]
    is_open: bool
    def __init__(self, results: _Optional[_Iterable[_Union[_worker_pb2.MoveResult, _Mapping]]] = ..., is_open: _Optional[bool] = ...) -> None: ...

class RankRemoveBlock(_message.Message):
    __slots__ = ("hash",)
    HASH_FIELD_NUMBER: _ClassVar[int]
    hash: bytes
    def __init__(self, hash: _Optional[bytes] = ...) -> None: ...

class RankOpenBlocks(_message.Message):
    __slots__ = ("number", "cpu_blocks")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CPU_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    number: int
    cpu_blocks: bytes
    def __init__(self, number: _Optional[int] = ..., cpu_blocks: _Optional[bytes] = ...) -> None: ...

class RankCloseBlocks(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RankCopyBlock(_message.Message):
    __slots__ = ("number", "place", "data")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    number: int
    place: int
    data: bytes
    def __init__(self, number: _Optional[int] = ..., place: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RankCopiedBlock(_message.Message):
    __slots__ = ("number", "place", "data")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    number: int
    place: int
    data: bytes
    def __init__(self, number: _Optional[int] = ..., place: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RankOpenAdapter(_message.Message):
    __slots__ = ("number", "name", "folder")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    number: int
    name: str
    folder: str
    def __init__(self, number: _Optional[int] = ..., name: _Optional[str] = ..., folder: _Optional[str] = ...) -> None: ...

class RankForgetAdapter(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RankAddAdapter(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RankRemoveAdapter(_message.Message):
    __slots__ = ("name", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class RankAdapterOpened(_message.Message):
    __slots__ = ("number", "sha256", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    sha256: str
    error: str
    def __init__(self, number: _Optional[int] = ..., sha256: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

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
