"""Loads a draft model, measures the memory that it needs, and owns its pool of KV."""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tokenizers import Tokenizer

from signalbox_contract.model import WorkerCapacity
from signalbox_contract.startup import ReportProgress
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import GIB, CacheConfig, ModelConfig, ModelError, SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.ram import available_ram
from signalbox_worker.drafts.proposer import Proposer
from signalbox_worker.kv.cache.capacity import cpu_cache_bytes, measure_capacity
from signalbox_worker.kv.store_config import DiskConfig, SharedConfig
from signalbox_worker.runner.draft_model.model_proposer import ModelProposer
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.model_source import naming
from signalbox_worker.runner.loading.opened_model import OpenedModel, open_with_config
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.loading.tokenizer_files import TOKENIZER

logger = logging.getLogger(__name__)

CACHE_SHARE = 4
"""The pool may have a quarter of the size of the served model's KV cache, in addition to it."""

LoadExecutor = Callable[[OpenedModel, RunnerConfig], Executor]


class DraftModel:
    """A draft model with its pool. Leases use it one after another, each from one thread."""

    def __init__(self, executor: Executor, capacity: WorkerCapacity) -> None:
        self.executor, self.capacity = executor, capacity
        self._pools = executor.make_pools(num_gpu_blocks=capacity.num_gpu_blocks, num_cpu_blocks=0)
        executor.prepare()

    @property
    def kv_bytes(self) -> int:
        return self._pools.gpu_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that KV and steps will take, in addition to the weights."""
        return self.kv_bytes + self.capacity.activations_bytes

    def make_proposer(self) -> Proposer:
        return ModelProposer(self.executor, self.capacity)


def open_draft_model(
    config: RunnerConfig, served: OpenedModel, progress: ReportProgress
) -> OpenedModel | None:
    """Opens the draft model that is configured; None if there is none, or on ranks above 0.

    Called before the weights of the served model are read, so that errors come early. Raises
    ModelError for a model that cannot draft, and what opening a model raises.
    """
    speculation = config.speculation
    if not (speculation.num_tokens and speculation.model) or config.parallel.rank:
        return None
    with naming(speculation.model):
        opened = open_with_config(_model_config(config), progress)
        check_draft_model(opened, served)
    return opened


def load_draft_model(
    config: RunnerConfig, opened: OpenedModel, *, max_model_len: int, load: LoadExecutor
) -> DraftModel:
    """Loads an opened model, on one rank.

    Args:
        config: settings of the served model.
        max_model_len: that of the served model.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    model = _model_config(config)
    length = min(max_model_len, opened.shape.usual_length)
    own = replace(
        config,
        model=model.model_copy(update={"max_model_len": length}),
        parallel=ParallelConfig(),
        disk=DiskConfig(),
        shared=SharedConfig(),
        speculation=SpeculationConfig(),
    )
    try:
        with naming(model.model):
            executor = load(opened, own)
        capacity = measure_drafts(executor, config.cache)
        found = DraftModel(executor, capacity)
    except MemoryError as error:
        raise MemoryError(f"the draft model {model.model}: {error}") from None
    logger.info(
        "%s drafts: %d MiB of weights, and %d MiB of KV for %d tokens",
        model.model,
        executor.weights_bytes >> 20,
        found.kv_bytes >> 20,
        capacity.num_gpu_blocks // len(capacity.groups) * capacity.block_size,
    )
    return found


def _model_config(config: RunnerConfig) -> ModelConfig:
    """Returns the settings of the draft model: those of the served model, without types and
    settings of its files. The types are those that fit the draft model's own files."""
    given, speculation = config.model, config.speculation
    return ModelConfig(
        model=speculation.model,
        revision=speculation.revision,
        load_format=given.load_format,
        packed_weights=given.packed_weights,
        model_plugin=given.model_plugin,
        trust_remote_code=given.trust_remote_code,
        runner="generate",
    )


def check_draft_model(opened: OpenedModel, served: OpenedModel) -> None:
    """Raises ModelError for a model that cannot draft for another."""
    if opened.shape.has_states:
        raise ModelError(
            f"{opened.shape.architecture} has recurrent layers, whose states cannot be reset after"
            " a refused draft; use a draft model without recurrent layers"
        )
    texts = [one.tokenizer_files()[TOKENIZER] for one in (served, opened)]
    if texts[0] == texts[1]:
        return
    ours, theirs = (
        Tokenizer.from_str(text.decode()).get_vocab(with_added_tokens=True) for text in texts
    )
    if differing := sorted(token for token, _ in ours.items() ^ theirs.items()):
        token = differing[0]
        raise ModelError(
            "a draft model needs the tokenizer of the model that it drafts for:"
            f" {token!r} is {_described(theirs.get(token))} here,"
            f" and {_described(ours.get(token))} there"
        )


def _described(token_id: int | None) -> str:
    return "no token" if token_id is None else f"token {token_id}"


def measure_drafts(executor: Executor, cache: CacheConfig) -> WorkerCapacity:
    """Runs the largest step; returns the capacity. Raises MemoryError if no block fits."""

    def execute(batch: Batch) -> None:
        batch.rows.temperature = np.zeros_like(batch.rows.temperature)  # drafts are the likeliest
        pools = executor.make_pools(num_gpu_blocks=1, num_cpu_blocks=0)
        executor.execute(batch)
        pools.close()
        executor.drop_pools()

    num_bytes = (cache.kv_cache_bytes or cpu_cache_bytes(available_ram())) // CACHE_SHARE
    own = cache.model_copy(update={"kv_cache_memory": num_bytes / GIB, "swap_space": 0.0})
    return measure_capacity(own, executor.footprint, executor.device, execute)
