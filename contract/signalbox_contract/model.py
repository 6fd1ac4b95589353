"""Model and capacity of a worker, with the fields of common.v1."""

import re
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from google.protobuf.message import Message

from signalbox_contract import pooling, sampling_defaults
from signalbox_contract.cache_groups import (
    FULL_GROUP,
    CacheGroup,
    check_groups,
    decode_group,
    encode_group,
)
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from signalbox_contract.sections.drafts import MAX_DRAFT_TOKENS
from signalbox_contract.sections.store_moves import ClearMark, decode_mark, encode_mark
from signalbox_protos.common.v1 import common_pb2 as pb

MAX_BLOCKS = 1 << 22
"""Blocks of a pool that a worker may announce: the scheduler keeps some 50 bytes for each. With the
smallest blocks of a small model, 0.4 MB, they are 1.6 TB."""
MAX_VOCABULARY = 1 << 22
"""Tokens of a vocabulary: routers keep the bytes of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Arithmetic of a worker; KV may move only between equals of all fields. See common.v1."""

    factors: str
    kernels: str
    kv_cache_dtype: str

    def __str__(self) -> str:
        return f"products in {self.factors} on {self.kernels}, K and V in {self.kv_cache_dtype}"


_MAX_ADAPTER_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter that is loaded; see common.proto."""

    name: str
    sha256: str
    path: str = field(default="", compare=False)
    loaded_at_ns: int = field(default=0, compare=False)
    """Wall-clock time at which it was loaded at run time; 0 of one that its worker began with."""

    is_leaving: bool = field(default=False, compare=False)
    """True if no new request may name it."""

    def __str__(self) -> str:
        return f"{self.name} ({self.sha256[:12]})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The served model; see worker.proto."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer_sha256: str = ""
    """Hash of the tokenizer's files; a runner, which only has the files, leaves it empty."""
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    fingerprint: str = ""
    """Identity of configuration and weights; empty if there are none, as in a simulation."""
    numerics: Numerics | None = field(default=None, compare=False)
    """Workers of one model may differ in it; None if the worker does not say."""
    adapters: tuple[Adapter, ...] = field(default=(), compare=False)
    """LoRA adapters that are loaded, by name."""
    pooling: PoolingModel | None = None
    """None of a model that generates."""
    started_as: tuple[str, ...] = field(default=(), compare=False)
    """Texts that named the model on command lines. Requests may name it so."""

    def check(self) -> None:
        """Raises ValueError if the vocabulary is larger than any table of it may be."""
        if not 1 <= self.vocab_size <= MAX_VOCABULARY:
            allowed = f"it must be from 1 to {MAX_VOCABULARY}"
            raise ValueError(f"vocab_size is {self.vocab_size}; {allowed}")

    @property
    def offered(self) -> tuple[Adapter, ...]:
        """Adapters that new requests may name."""
        return tuple(one for one in self.adapters if not one.is_leaving)

    def difference(self, other: "ModelInfo") -> str | None:
        """Names the first field in which another model differs, with both values."""
        for entry in fields(self):
            if not entry.compare:
                continue
            mine, theirs = getattr(self, entry.name), getattr(other, entry.name)
            if mine != theirs:
                return f"{entry.name} is {theirs!r}, but the scheduler serves {mine!r}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRank:
    """One rank of a worker; see common.proto."""

    rank: int
    stage: int
    tensor_parallel_rank: int
    host: str
    address: str = ""
    first_layer: int
    num_layers: int


_MOST = {
    "block_size": 4096,
    "max_num_seqs": 1 << 20,
    "max_num_batched_tokens": 1 << 30,
    "grammar_bytes": 1 << 50,
    "max_steps_in_flight": 1024,
    "tensor_parallel_size": 1024,
    "pipeline_parallel_size": 1024,
}
"""Most that a worker may announce of each; beyond it no device goes, and the scheduler plans by
it."""

_DIGEST = re.compile(r"[0-9a-f]{64}")

STORE_KINDS = ("disk", "shared", "memory")
"""Kinds of a worker's store of KV blocks, which are labels of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapacity:
    """A store of KV blocks; see BlockStore in common.proto."""

    kind: str
    read_bytes_per_s: float = 0.0
    max_write_bytes_per_s: int = 0
    """0 is any number."""
    clears: tuple[ClearMark, ...] = ()
    """The last clear of each scheduler of which workers with this folder were told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCapacity:
    """Capacity of a worker, measured by profiling; see worker.proto."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    copy_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    activations_bytes: int = 0
    """Bytes that the largest step took beside weights and KV. The worker does not announce it."""
    tensor_parallel_size: int = 1
    """Ranks of a stage, each with these blocks of `block_bytes`."""
    pipeline_parallel_size: int = 1
    """Stages that steps pass through one after another."""
    grammar_bytes: int = 0
    """Bytes that compiled structured outputs may count for together; a runner leaves it at 0."""
    max_steps_in_flight: int = 1
    """Most steps that the worker takes before it has answered the first of them."""
    ranks: tuple[WorkerRank, ...] = ()
    """Ranks in their order; empty for a worker of one rank."""
    store: StoreCapacity | None = None
    """Store to which blocks go from the CPU pool, and from which they come there."""
    block_format: str = ""
    """Format of a block's bytes; workers of one format may read each other's. Empty if none may."""
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    """Groups of layers, each of which has a block for the same tokens of a sequence."""
    max_draft_tokens: int = 0
    """Most drafts that a sequence computes in one step; 0 if it computes none."""
    arithmetic: str = ""
    """Digest of the bits that the worker computes, in lower-case hex: workers that announce the
    same compute the same bits. Empty if they depend on the batch."""

    @property
    def num_stages(self) -> int:
        return self.pipeline_parallel_size

    def check(self) -> None:
        """Raises ValueError if a scheduler cannot plan for such a worker."""
        if self.block_size < 1 or self.num_gpu_blocks < 1:
            raise ValueError(
                f"a worker with {self.num_gpu_blocks} blocks of {self.block_size} tokens"
                " cannot hold a sequence"
            )
        most = max(self.num_gpu_blocks, self.num_cpu_blocks)
        if most > MAX_BLOCKS:
            raise ValueError(f"a worker with {most} blocks has more than {MAX_BLOCKS}")
        for name, most in _MOST.items():
            if not 1 <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name} is {value}; it must be from 1 to {most}")
        if not 0 <= self.max_draft_tokens <= MAX_DRAFT_TOKENS:
            most = MAX_DRAFT_TOKENS
            raise ValueError(f"max_draft_tokens is {self.max_draft_tokens}; it is at most {most}")
        if self.arithmetic and not _DIGEST.fullmatch(self.arithmetic):
            raise ValueError(f"arithmetic is {self.arithmetic[:80]!r}; it is no SHA-256 in hex")
        check_groups(self.groups)
        if self.store is not None and not self.num_cpu_blocks:
            raise ValueError("a worker with a store of KV blocks has no CPU blocks to move them in")
        if self.store is not None and self.store.kind not in STORE_KINDS:
            raise ValueError(f"a store of KV blocks is one of {', '.join(STORE_KINDS)}")


def check_adapter_name(name: str) -> None:
    """Raises ValueError."""
    if not name or not name.isprintable() or len(name) > _MAX_ADAPTER_NAME_CHARS:
        raise ValueError(
            f"{name[:40]!r} is no name of an adapter; give 1 to {_MAX_ADAPTER_NAME_CHARS} printable"
            " characters"
        )


def encode_adapter(adapter: Adapter) -> pb.Adapter:
    return pb.Adapter(**asdict(adapter))


def decode_adapter(message: pb.Adapter) -> Adapter:
    return Adapter(**_shared(message, Adapter, message))


def encode_model(model: ModelInfo) -> pb.ModelInfo:
    own = {
        "sampling_defaults": sampling_defaults.encode(model.sampling_defaults),
        "numerics": model.numerics and pb.Numerics(**asdict(model.numerics)),
        "adapters": map(encode_adapter, model.adapters),
        "pooling": model.pooling and pooling.encode_model(model.pooling),
    }
    return pb.ModelInfo(**_shared(model, ModelInfo, pb.ModelInfo) | own)


def decode_model(message: pb.ModelInfo) -> ModelInfo:
    numerics = _shared(message.numerics, Numerics, pb.Numerics)
    own = {
        "eos_token_ids": tuple(message.eos_token_ids),
        "sampling_defaults": sampling_defaults.decode(message.sampling_defaults),
        "numerics": Numerics(**numerics) if message.HasField("numerics") else None,
        "adapters": tuple(map(decode_adapter, message.adapters)),
        "pooling": pooling.decode_model(message.pooling) if message.HasField("pooling") else None,
        "started_as": tuple(message.started_as),
    }
    return ModelInfo(**_shared(message, ModelInfo, message) | own)


def encode_capacity(capacity: WorkerCapacity) -> pb.WorkerCapacity:
    own = {
        "copy_bytes_per_second": int(capacity.copy_bytes_per_s),
        "prefill_tokens_per_second": int(capacity.prefill_tokens_per_s),
        "ranks": map(encode_rank, capacity.ranks),
        "store": capacity.store and _encode_store(capacity.store),
        "groups": map(encode_group, capacity.groups) if capacity.groups != (FULL_GROUP,) else (),
    }
    return pb.WorkerCapacity(**_shared(capacity, WorkerCapacity, pb.WorkerCapacity) | own)


def decode_capacity(message: pb.WorkerCapacity) -> WorkerCapacity:
    own = {
        "copy_bytes_per_s": message.copy_bytes_per_second,
        "prefill_tokens_per_s": message.prefill_tokens_per_second,
        "tensor_parallel_size": message.tensor_parallel_size or 1,
        "pipeline_parallel_size": message.pipeline_parallel_size or 1,
        "max_steps_in_flight": message.max_steps_in_flight or 1,
        "ranks": tuple(WorkerRank(**_shared(one, WorkerRank, one)) for one in message.ranks),
        "store": _decode_store(message.store) if message.HasField("store") else None,
        "groups": tuple(map(decode_group, message.groups)) or (FULL_GROUP,),
    }
    return WorkerCapacity(**_shared(message, WorkerCapacity, message) | own)


def _encode_store(store: StoreCapacity) -> pb.BlockStore:
    return pb.BlockStore(
        kind=store.kind,
        read_bytes_per_second=int(store.read_bytes_per_s),
        max_write_bytes_per_second=store.max_write_bytes_per_s,
        clears=map(encode_mark, store.clears),
    )


def _decode_store(message: pb.BlockStore) -> StoreCapacity:
    return StoreCapacity(
        kind=message.kind,
        read_bytes_per_s=message.read_bytes_per_second,
        max_write_bytes_per_s=message.max_write_bytes_per_second,
        clears=tuple(decode_mark(one, "capacity.store.clears") for one in message.clears),
    )


def encode_rank(rank: WorkerRank) -> pb.WorkerRank:
    return pb.WorkerRank(**asdict(rank))


def _shared(source: object, of: type, message: Message | type[Message]) -> dict[str, Any]:
    """Returns the values of the fields that a dataclass and a message both have."""
    names = message.DESCRIPTOR.fields_by_name
    return {one.name: getattr(source, one.name) for one in fields(of) if one.name in names}
