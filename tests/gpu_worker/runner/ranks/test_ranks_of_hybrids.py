"""Ranks and stages of models with recurrent layers give the tokens of one program."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import PreemptionMode
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.state_runs import first_states
from signalbox_worker.config import ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.service.rank_client import NoNextRank
from signalbox_worker.runner.ranks.stage import NoStatesBefore, Stage
from tests.gpu_worker.generation import make_batch, make_sequence, num_row_blocks
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.executors.settled_states import Steps, assert_settled
from tests.gpu_worker.runner.ranks.test_rank_matrix import (
    assert_like_one,
    logprobs_of,
    tokens_of,
)
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS
from tests.signalbox.llm.make import assert_at_rest

skip_without_native_kernels()
pytestmark = pytest.mark.slow

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
WIDE = {"hidden_size": 96, "num_key_value_heads": 6, "num_attention_heads": 6, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16}
INNER = {"intermediate_size": 128, "shared_intermediate_size": 128}
PARTS = ["moe", "linear_attention", "full_attention", "mlp"]


def staged(recurrent: str, attends: str) -> dict[str, Any]:
    """Returns fields of a model of two layers that attend, and three others."""
    kinds = [recurrent, attends, recurrent, recurrent, attends]
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}


def generate(path: Path, tp: int, pp: int, **options: Any) -> tuple[Any, list[float]]:
    """Returns tokens and log probabilities of prompts, most of which are a prefix of others."""
    start = with_sizes(make_start(path, ParallelConfig(), cpu_backend="native", **options), tp, pp)
    prompts: Any = [{"prompt_token_ids": ids} for ids in make_prompts(5, 33, 40)]
    prompts += [{"prompt_token_ids": [*prompts[1]["prompt_token_ids"], 7, 8]}]
    with LLM._from_runner(partial(load_threads, start), CoreConfig()) as llm:
        outputs = llm.generate(prompts[:3], PARAMS, use_tqdm=False)
        outputs += llm.generate(prompts[1:], PARAMS, use_tqdm=False)
        assert llm.llm_engine._core.scheduler.planner.num_prefix_hits == 3 * 32
        assert_at_rest(llm.llm_engine)
    return tokens_of(outputs), logprobs_of(outputs)


@pytest.mark.parametrize(
    ("family", "fields", "sizes"),
    [
        ("lfm2", WIDE | staged("conv", "full_attention"), [(2, 1), (3, 1), (1, 2)]),
        ("lfm2-moe", WIDE | {"moe_intermediate_size": 72}, [(2, 1)]),
        # a norm of the columns of all ranks, and one on each rank
        ("granite-hybrid", {"mamba_n_groups": 1} | staged("mamba", "attention"), [(3, 1), (3, 2)]),
        ("granite-hybrid", HEADS | {"mamba_n_groups": 2}, [(2, 1)]),
        ("granite-hybrid", HEADS | {"mamba_n_groups": 1, "num_local_experts": 4}, [(2, 1)]),
        (
            "nemotron-h-moe",
            HEADS | {"moe_intermediate_size": 64, "layers_block_type": [*PARTS, *PARTS]},
            [(2, 1), (2, 2)],
        ),
        # four ranks share two heads of keys
        ("qwen3.5", HEADS | INNER | staged("linear_attention", "full_attention"), [(4, 1), (2, 2)]),
    ],
)
def test_ranks_give_the_tokens_of_one_program(
    family: str, fields: dict[str, Any], sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    make_model(tmp_path, family, **fields)
    tokens, logprobs = generate(tmp_path, 1, 1)
    for tp, pp in sizes:
        found, own = generate(tmp_path, tp, pp)
        assert found == tokens, f"{tp} x {pp}"
        np.testing.assert_allclose(own, logprobs, rtol=0, atol=LOGITS)


def test_states_of_all_ranks_are_swapped(tmp_path: Path) -> None:
    """Of sequences that a pool of 20 blocks has no room for."""
    make_model(tmp_path, "lfm2", **HEADS | {"hidden_size": 64} | staged("conv", "full_attention"))
    num_bytes = 20 * 16 * 2 * 4 * 2 * 64
    start = make_start(tmp_path, ParallelConfig(), kv_bytes=num_bytes, cpu_backend="native")
    assert_like_one(start, [(2, 2)], PreemptionMode.SWAP)


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("lfm2", WIDE | staged("conv", "full_attention")),
        ("granite-hybrid", HEADS | {"mamba_n_groups": 2}),
        ("qwen3.5", HEADS | INNER | staged("linear_attention", "full_attention")),
    ],
)
def test_states_of_all_ranks_are_settled(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    make_model(tmp_path, family, **fields)
    start = make_start(tmp_path, ParallelConfig(), cpu_backend="native")
    runner = load_threads(with_sizes(start, 2, 1))
    try:
        groups = runner._own.executor.footprint.groups
        runner.init_cache_engine(num_gpu_blocks=10 * num_row_blocks(groups), num_cpu_blocks=0)
        assert_settled(Steps(runner, groups, runner._own.pools.gpu_pool))
    finally:
        runner.close()


class _NoMemory:
    """A rank's runner that has no memory."""

    executor = SimpleNamespace(collective_ns=0)

    def execute(self, batch: Batch) -> BatchOutput:
        raise MemoryError("none")


@pytest.mark.parametrize(("is_first", "error"), [(True, MemoryError), (False, RuntimeError)])
def test_no_part_runs_again_once_a_stage_has_changed_states(
    is_first: bool, error: type[Exception]
) -> None:
    before: Any = NoStatesBefore() if is_first else SimpleNamespace(take=lambda *_: ((), 0))
    runner: Any = _NoMemory()
    stage = Stage(runner, before, NoNextRank())
    batch = make_batch([(make_sequence([5, 6, 7], [1]), 3)], block_size=16)
    batch.states = first_states(np.array([3]), state_blocks=1)
    with pytest.raises(error, match="none"):
        stage.execute(batch, command=1, arrived_ns=0)


@pytest.mark.parametrize(
    ("family", "options", "tolerance"),
    [
        ("lfm2", {"quantization": "int8"}, LOGITS),
        ("granite-hybrid", {"dtype": "bfloat16"}, 0.02),
        ("qwen3.5", {"quantization": "int4"}, LOGITS),
    ],
)
def test_ranks_of_other_types_are_near_one_program(
    family: str, options: dict[str, str], tolerance: float, tmp_path: Path
) -> None:
    make_model(tmp_path, family, **HEADS | {"mamba_n_groups": 1})
    tokens, logprobs = generate(tmp_path, 1, 1, **options)
    found, own = generate(tmp_path, 2, 1, **options)
    assert found == tokens
    np.testing.assert_allclose(own, logprobs, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("family", "fields", "sizes", "reason"),
    [
        ("lfm2", {}, (2, 1), r"num_attention_heads \(3\) cannot be divided"),
        ("lfm2", WIDE, (6, 1), "96 channels of a layer have fewer than 6 blocks"),
        ("granite-hybrid", HEADS | INNER, (4, 1), r"heads of Mamba-2 \(6\) cannot be divided"),
        ("granite-hybrid", {}, (3, 1), r"groups of Mamba-2 \(2\) .* it can by 1, 2"),
        (
            "qwen3.5",
            HEADS | INNER | {"linear_num_value_heads": 2},
            (4, 1),
            "linear_num_value_heads",
        ),
        ("lfm2", {}, (1, 2), r"no layer of stage \d, \d to \d, attends"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(
    family: str, fields: dict[str, Any], sizes: tuple[int, int], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family, **fields)
    start = with_sizes(make_start(tmp_path, ParallelConfig()), *sizes)
    with pytest.raises(ModelError, match=reason):
        load_threads(start)
