"""Models and requests that silent faults need, and the faults that are planted with each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from signalbox_contract.model import StoreCapacity
from signalbox_scheduler.audits.finding import AuditSource
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads
from signalbox_worker.runner.runner import Runner
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapters
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_llama, make_model
from tests.integration.audits import silent_faults as faults
from tests.integration.audits.silent_faults import Plant, in_batches, in_moves

NUM_DRAFTS = 4
PROMPTS = make_prompts(20, 37, 45, 26, 33)


def allowed(*tokens: int) -> bytes:
    return np.array(tokens, dtype="<i4").tobytes()


SAMPLED: Sequence[Mapping[str, Any]] = (
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 0.9, "seed": 2, "frequency_penalty": 0.7},
    {"allowed_token_ids": allowed(*range(5, 50))},
    {"temperature": 0.9, "seed": 3, "allowed_token_ids": allowed(*range(40, 90))},
)
"""Parameters of the requests of most shapes."""
PENALISED = [{**one, "frequency_penalty": 1.5, "presence_penalty": 0.5} for one in SAMPLED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model on two workers, its requests, and faults of the one that serves them."""

    plants: Mapping[str, Plant]
    source: AuditSource = AuditSource.WORKER
    """What findings suspect."""
    family: str = "llama"
    sizes: Mapping[str, Any] = field(default_factory=dict)
    kv_bytes: int = 1 << 22
    kv_dtype: str = "auto"
    max_model_len: int = 250
    num_drafts: int = 0
    num_adapters: int = 0
    num_store_blocks: int = 0
    num_ranks: int = 1
    """Tensor-parallel ranks of each worker."""
    is_read_from_a_peer: bool = False
    """True if the other worker serves while a fault is planted, with blocks of this one."""
    migrates: bool = False
    """True if requests migrate to the other worker while a fault is planted."""
    sampled: Sequence[Mapping[str, Any]] = SAMPLED
    num_sequences: int = 1
    num_tokens: int = 24

    def save(self, path: Path) -> Callable[[], Runner]:
        """Saves the model; returns what loads it."""
        if self.family == "llama" and not self.num_adapters:
            make_llama(path, **self.sizes)
            lora = []
        else:
            model = make_model(path, self.family, **self.sizes)
            kinds = KINDS[: self.num_adapters]
            lora = make_adapters(model, path / "adapters", kinds) if kinds else []
        start = make_start(
            path,
            ParallelConfig(),
            kv_bytes=self.kv_bytes,
            kv_dtype=self.kv_dtype,
            cpu_backend="native",
            max_model_len=self.max_model_len,
            lora=lora,
        )
        start = replace(start, speculation=SpeculationConfig(num_tokens=self.num_drafts))
        start = with_sizes(start, self.num_ranks, 1)
        return lambda: self._made(load_threads(start))

    def _made(self, runner: Any) -> Runner:
        """Gives a runner a store in memory, and lets it exchange blocks, if that is the shape."""
        made: Runner = runner
        profile = made.profile
        if not (self.is_read_from_a_peer or self.migrates):
            runner.profile = lambda: replace(profile(), block_format="")
        if self.num_store_blocks:
            store = MemoryStore(
                block_bytes=runner.executor.footprint.block_bytes, num_blocks=self.num_store_blocks
            )
            runner.transfers = PoolTransfers(StoreThreads(store, StoreCapacity(kind="memory")))
        return made

    def requests(self, adapters: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yields the fields of each request.

        Args: adapters: digests of those that workers have loaded.
        """
        for number, (prompt, fields) in enumerate(zip(PROMPTS, self.sampled, strict=True)):
            yield {
                "prompt": PROMPTS[2] if self.num_adapters else prompt,
                "max_tokens": self.num_tokens,
                "num_sequences": self.num_sequences,
                "sampling_params": {"top_p": 1.0, "num_logprobs": 0, **fields},
                "adapter": (["", *adapters] * 2)[number] if adapters else "",
            }


SMALL_POOL = 12 * 12288
"""Bytes of twelve blocks of the Llama, in which two of the requests have room."""
SHAPES = {
    "batches": Shape(
        plants={
            "slots are exchanged": in_batches(faults.exchange_slots),
            "slots are off by one": in_batches(faults.write_before),
            "a table has another sequence's block": in_batches(faults.read_first_block_of_the_next),
            "a mask is shifted by one": in_batches(faults.shift_mask),
            "a draw reads another row": in_batches(faults.read_row_of_the_next),
            "a draw has another request's mask": in_batches(faults.take_mask_of_the_next),
            "a draw has another request's seed": in_batches(faults.take_seed_of_the_next),
            "a draw is off by one position": in_batches(faults.draw_as_one_later),
            "a sequence gets another one's token": faults.report_token_of_the_next,
            "weights are flipped": faults.flip_weights,
        },
    ),
    "ranks": Shape(
        plants={"weights of one rank are flipped": faults.flip_weights_of_rank_1}, num_ranks=2
    ),
    "drafts": Shape(
        plants={
            "a penalty counts a refused draft": in_batches(faults.count_the_draft_behind),
        },
        num_drafts=NUM_DRAFTS,
        sampled=PENALISED,
    ),
    "branches": Shape(
        plants={"a copy map is off by one": in_moves(faults.copy_the_block_before)},
        num_sequences=2,
    ),
    "states": Shape(
        plants={
            "sequences exchange states": in_batches(faults.read_state_of_the_next),
            "accepted drafts leave no state": faults.leave_states_unsettled,
        },
        family="lfm2",
        num_drafts=NUM_DRAFTS,
    ),
    "states of branches": Shape(
        plants={"a fork has a stale state": faults.leave_states_of_forks},
        family="lfm2",
        num_sequences=2,
    ),
    "swap": Shape(
        source=AuditSource.SWAP,
        plants={"blocks come back to other slots": in_moves(faults.return_to_the_next_slot)},
        kv_bytes=SMALL_POOL,
        max_model_len=112,
        num_tokens=60,
    ),
    "codes": Shape(
        plants={"codes have another head's scale": faults.exchange_scales}, kv_dtype="int8"
    ),
    "store": Shape(
        source=AuditSource.STORE,
        plants={"a store has a neighbour's block": faults.read_neighbours_of_the_store},
        num_store_blocks=200,
    ),
    "peer": Shape(
        source=AuditSource.PEER,
        plants={"a peer sends a neighbour's block": faults.send_neighbours},
        is_read_from_a_peer=True,
    ),
    "migration": Shape(
        source=AuditSource.MIGRATION,
        plants={"a migration brings a neighbour's block": faults.send_neighbours},
        migrates=True,
        num_tokens=180,
    ),
    "adapters": Shape(
        plants={
            "tokens have another request's adapter": in_batches(faults.take_adapter_of_the_next),
            "prefixes of other adapters are found": faults.find_prefixes_of_other_adapters,
        },
        family="llama3",
        sizes={"head_dim": 16},
        num_adapters=2,
    ),
}
