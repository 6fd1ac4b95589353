"""Builds steps, tables and runners for the tests of the worker."""

from dataclasses import replace
from typing import Any

import numpy as np

from signalbox_contract import columns
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import BlockMapping, BlockMoves
from signalbox_contract.step import NewSequence, Step
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.lease.lease import Lease
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.sampling.grammars import Grammars


def make_config(**overrides: Any) -> SimulatedConfig:
    small: dict[str, Any] = {
        "max_model_len": 64,
        "block_size": 4,
        "num_gpu_blocks": 16,
        "num_cpu_blocks": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
    }
    return SimulatedConfig(**{**small, **overrides})


def make_runner(**overrides: Any) -> SimulatedRunner:
    runner = SimulatedRunner(make_config(**overrides))
    runner.init_cache_engine(
        num_gpu_blocks=runner.config.num_gpu_blocks, num_cpu_blocks=runner.config.num_cpu_blocks
    )
    return runner


def make_table(runner: SimulatedRunner, grammars: Grammars | None = None) -> SequenceTable:
    return SequenceTable(
        model=runner.model,
        capacity=runner.profile(),
        num_gpu_blocks=runner.config.num_gpu_blocks,
        grammars=grammars or Grammars(runner.model, tokenizer_json=b""),
    )


def make_lease(runner: SimulatedRunner | None = None, *, num_cpu_blocks: int = 4) -> Lease:
    runner = runner or make_runner(num_cpu_blocks=num_cpu_blocks)
    return Lease(
        epoch=7,
        runner=runner,
        capacity=runner.profile(),
        num_gpu_blocks=runner.config.num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        grammars=Grammars(runner.model, tokenizer_json=b""),
    )


def make_new(seq_id: int, token_ids: list[int], blocks: list[int], **overrides: Any) -> NewSequence:
    fields: dict[str, Any] = {
        "branch": 0,
        "num_prompt_tokens": len(token_ids),
        "num_computed_tokens": 0,
        "num_new_tokens": len(token_ids) - overrides.get("num_computed_tokens", 0),
        "num_samples": 1,
        "params": SamplingParams(),
    }
    fields.update(overrides)
    return NewSequence(seq_id=seq_id, token_ids=token_ids, block_table=blocks, **fields)


def make_step(
    step_id: int = 1, *, running: dict[int, int] | None = None, epoch: int = 7, **fields: Any
) -> Step:
    """Builds a step; `running` maps sequences to numbers of new tokens."""
    running = running or {}
    if "finished" in fields:
        fields["finished"] = columns.int64s(list(fields["finished"]))
    moves = {name: fields.pop(name) for name in ("swap_out", "swap_in", "copy") if name in fields}
    if moves:
        fields["block_moves"] = BlockMoves(**moves)
    return Step(
        epoch=epoch,
        step_id=step_id,
        running_seq_ids=columns.int64s(list(running)),
        running_num_new_tokens=columns.int32s(list(running.values())),
        **fields,
    )


def with_moves(step: Step, **mappings: BlockMapping) -> Step:
    """Replaces some of the copies of a step."""
    return replace(step, block_moves=replace(step.block_moves, **mappings))


def make_mapping(pairs: dict[int, int]) -> BlockMapping:
    return BlockMapping(
        np.array(list(pairs), dtype=np.int32), np.array(list(pairs.values()), dtype=np.int32)
    )


def int64s(*values: int) -> Int64Array:
    return np.array(values, dtype=np.int64)
