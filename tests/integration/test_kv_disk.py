"""A worker that restarts finds its prefixes on the disk, with the same tokens after them."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, EngineDeadError, SamplingParams
from signalbox_worker.kv.disk.disk_tier import DiskTier
from signalbox_worker.runner.native.executor import NativeExecutor
from tests.gpu_worker.tiny_models import LATENTS, UNLIKE_LAYERS, make_model
from tests.scheduler_svc.make import transfers
from tests.signalbox.llm.make import assert_at_rest
from tests.waiting import EVENT_S, wait_until

SIZES: dict[str, Any] = {
    "kv_cache_memory": 0.05,
    "swap_space": 0.05,
    "max_model_len": 250,
    "num_threads": 1,
}
PROMPT = list(range(3, 64)) * 3
NUM_BLOCKS = (len(PROMPT) - 1) // 16
WINDOWS: dict[str, Any] = {
    "sliding_window": 21,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 6,
    "max_position_embeddings": 256,
}

pytestmark = pytest.mark.usefixtures("loading_pays", "patient_moves")


class Served:
    """An engine over the model, and its disk tier."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        core = self.engine._core
        self.runner: Any = core._worker._runner
        shard = getattr(self.runner, "_own", None) or self.runner  # of the first rank
        self.tier: DiskTier = shard.transfers.store.store
        self.loading = transfers(core.scheduler).loading
        self.moves = transfers(core.scheduler).transfers
        self.blocks = core.scheduler.blocks
        assert self.tier.opened.wait(EVENT_S)

    def tokens(self, prompt: list[int] = PROMPT) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (output,) = self.llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def store_prompt(self) -> list[int]:
        """Has the prompt used twice, and waits until its blocks are on the disk."""
        tokens = self.tokens()
        usage, num_blocks = self.tier.usage, NUM_BLOCKS * self.blocks.num_groups
        for again in self.asked_until(
            lambda: usage().num_blocks >= num_blocks, PROMPT, within_s=EVENT_S
        ):
            assert again == tokens
        return tokens

    def open_all(self) -> None:
        """Asks for prompts that no store has until the stores of all ranks answer lookups."""
        are_open = self.runner.transfers._are_open
        for number in range(1, 1000):
            if len(are_open) > 1 and all(are_open.values()):
                return
            self.tokens([number % 30 + 1, number // 30 + 1] * 9)
        raise TimeoutError("the store of a rank does not open")

    def end_moves(self) -> None:
        """Waits until all moves have ended, of which the results of steps tell."""
        for _ in self.asked_until(lambda: not self.moves, [5, 6, 7]):
            pass

    def asked_until(
        self, is_done: Callable[[], bool], prompt: list[int], *, within_s: float = 60
    ) -> Iterator[list[int]]:
        """Asks again and again, as moves go with steps; yields the tokens of each answer."""
        deadline = time.monotonic() + within_s
        while not is_done():
            assert time.monotonic() < deadline
            yield self.tokens(prompt)


@contextmanager
def serving(model: Path, disk: Path, **options: Any) -> Iterator[Served]:
    with LLM(str(model), kv_disk=str(disk), **SIZES | options) as llm:
        served = Served(llm)
        yield served
        served.end_moves()
        assert_at_rest(served.engine)
    # The end of an engine waits for a moment at most; the next one is to have the same files.
    served.tier._thread.join(EVENT_S)


BACKENDS = ("native", "torch")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_restarted_worker_finds_its_prefix_on_the_disk(
    model: Path, tmp_path: Path, backend: str
) -> None:
    assert_found_after_a_restart(model, tmp_path / "kv", backend)


@pytest.mark.parametrize(("family", "sizes"), [("deepseek-v2", LATENTS), ("gemma4", UNLIKE_LAYERS)])
def test_latents_and_layers_that_differ_are_found_on_the_disk(
    tmp_path: Path, family: str, sizes: dict[str, Any]
) -> None:
    make_model(tmp_path / "model", family, **sizes)
    assert_found_after_a_restart(tmp_path / "model", tmp_path / "kv", "native")


@pytest.mark.parametrize("tp", [1, 2])
def test_a_model_with_windows_finds_what_they_see_on_the_disk(tmp_path: Path, tp: int) -> None:
    make_model(tmp_path / "model", "gemma3", **WINDOWS)
    options: dict[str, Any] = {"cpu_backend": "native", "tensor_parallel_size": tp}
    with serving(tmp_path / "model", tmp_path / "kv", **options) as served:
        assert [group.window for group in served.blocks.groups] == [0, 21, 21]
        expected = served.store_prompt()
        block_bytes = served.tier.block_bytes
    with serving(tmp_path / "model", tmp_path / "kv", **options) as served:
        if tp > 1:
            served.open_all()
        assert served.tokens() == expected
        counts = served.loading.counts
        assert counts.num_hits == NUM_BLOCKS * 16
        # Of each window the two blocks that the next token sees.
        assert counts.num_bytes == (NUM_BLOCKS + 2 * 2) * block_bytes


@pytest.mark.parametrize("family", ["lfm2", "qwen3.5"])
def test_snapshots_are_found_on_the_disk(tmp_path: Path, family: str) -> None:
    make_model(tmp_path / "model", family, max_position_embeddings=256)
    with serving(tmp_path / "model", tmp_path / "kv") as served:
        num_blocks = NUM_BLOCKS + served.blocks.states.num_blocks
        expected, usage = served.tokens(), served.tier.usage
        is_stored = lambda: usage().num_blocks >= num_blocks  # noqa: E731
        for again in served.asked_until(is_stored, PROMPT, within_s=EVENT_S):
            assert again == expected
    with serving(tmp_path / "model", tmp_path / "kv") as served:
        assert served.tokens() == expected
        assert served.loading.counts.num_hits == NUM_BLOCKS * 16
        assert served.loading.counts.num_bytes == num_blocks * served.tier.block_bytes


def assert_found_after_a_restart(model: Path, disk: Path, backend: str) -> None:
    with serving(model, disk, cpu_backend=backend) as served:
        expected = served.store_prompt()
    with serving(model, disk, cpu_backend=backend) as served:
        assert served.tier.usage().num_blocks >= NUM_BLOCKS
        assert served.tokens() == expected
        assert served.loading.counts.num_hits == NUM_BLOCKS * 16


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_with_a_flipped_bit_is_computed(
    model: Path, tmp_path: Path, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(model, tmp_path / "kv", cpu_backend=backend) as served:
        expected = served.store_prompt()
        size = served.tier.block_bytes
    (blocks,) = (tmp_path / "kv").glob("*.blocks")
    content = bytearray(blocks.read_bytes())
    slot_bytes = -(-size // 4096) * 4096
    for slot in range(4, NUM_BLOCKS):
        content[slot * slot_bytes + 5] ^= 1
    blocks.write_bytes(content)
    with serving(model, tmp_path / "kv", cpu_backend=backend) as served:
        assert served.tokens() == expected
        assert 0 < served.loading.counts.num_hits < NUM_BLOCKS * 16
        assert served.tier.usage().num_failed
    assert "is not what was written" in caplog.text


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_ranks_of_which_one_was_killed_while_it_wrote_find_their_prefix(
    model: Path, tmp_path: Path, tp: int, pp: int
) -> None:
    options: dict[str, Any] = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp}
    llm = LLM(str(model), kv_disk=str(tmp_path / "kv"), **SIZES | options)
    try:
        served = Served(llm)
        expected = served.tokens()
        assert served.tokens() == expected  # begins to write
        wait_until(lambda: served.tier.usage().num_blocks)
        (pid,) = served.runner.follower_pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            while True:
                served.tokens()
    finally:
        llm.close()
    with serving(model, tmp_path / "kv", **options) as served:
        assert served.tokens() == expected
        served.open_all()
        served.store_prompt()
        served.end_moves()
    with serving(model, tmp_path / "kv", **options) as served:
        served.open_all()
        assert served.tokens() == expected
        assert served.loading.counts.num_hits == NUM_BLOCKS * 16
        assert len(list((tmp_path / "kv").glob("*.blocks"))) == 2


def test_a_fine_tune_of_the_same_name_and_shapes_finds_nothing(model: Path, tmp_path: Path) -> None:
    tuned = tmp_path / model.name
    shutil.copytree(model, tuned)
    weights = tuned / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 1  # of one weight
    with serving(tuned, tmp_path / "kv", cpu_backend="native") as served:
        served.store_prompt()
    weights.write_bytes(content)
    with serving(tuned, tmp_path / "kv", cpu_backend="native") as served:
        assert served.tier.usage().num_blocks == 0
        served.tokens()
        assert served.loading.counts.num_hits == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_the_model_in_another_place_finds_its_blocks(
    model: Path, tmp_path: Path, backend: str
) -> None:
    with serving(model, tmp_path / "kv", cpu_backend=backend) as served:
        expected = served.store_prompt()
    copy = shutil.copytree(model, tmp_path / "copy")
    with serving(copy, tmp_path / "kv", cpu_backend=backend) as served:
        assert served.tokens() == expected
        assert served.loading.counts.num_hits == NUM_BLOCKS * 16


def test_blocks_of_code_that_computed_other_bits_are_not_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model, tmp_path / "kv", cpu_backend="native") as served:
        served.store_prompt()
    digest_of = NativeExecutor.arithmetic

    def digest_of_other_bits(self: NativeExecutor, *, max_num_tokens: int) -> str:
        return digest_of(self, max_num_tokens=max_num_tokens)[::-1]

    monkeypatch.setattr(NativeExecutor, "arithmetic", digest_of_other_bits)
    with serving(model, tmp_path / "kv", cpu_backend="native") as served:
        assert served.tier.usage().num_blocks == 0
        served.tokens()
        assert served.loading.counts.num_hits == 0


def test_another_block_size_or_kv_type_finds_nothing(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "kv", cpu_backend="native") as served:
        served.store_prompt()
    for other in ({"block_size": 32}, {"kv_cache_dtype": "bfloat16"}, {"max_model_len": 240}):
        with serving(model, tmp_path / "kv", cpu_backend="native", **other) as served:
            assert served.tier.usage().num_blocks == 0


def test_a_cleared_cache_is_found_nowhere_after_a_restart(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path / "kv", cpu_backend="native") as served:
        served.store_prompt()
        assert served.llm.reset_prefix_cache()
        served.tokens([5, 6, 7])  # the clear goes with a step
        for _ in served.asked_until(lambda: not served.tier.usage().num_blocks, [5, 6, 7]):
            pass
    with serving(model, tmp_path / "kv", cpu_backend="native") as served:
        assert served.tier.usage().num_blocks == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_arrive_in_the_pools_of_an_engine_that_has_slept(
    model: Path, tmp_path: Path, backend: str
) -> None:
    with serving(model, tmp_path / "kv", cpu_backend=backend) as served:
        expected = served.store_prompt()
    with serving(model, tmp_path / "kv", cpu_backend=backend) as served:
        served.engine._core._worker.drop_cache()  # as sleep does, which clears the tier before
        served.engine._core._worker.restore_cache()
        assert served.tokens() == expected
        assert served.loading.counts.num_hits == NUM_BLOCKS * 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"swap_space": 0}, "swap"),
        ({"enable_prefix_caching": False}, "prefix_caching"),
        ({"cpu_prefix_cache": False}, "prefix_caching"),
        ({"kv_disk_space": 0.1}, "kv_disk_space"),
        ({"kv_disk": None, "kv_disk_space": 1}, "no effect without"),
        ({"kv_disk": "/proc/kv"}, "folder"),
    ],
)
def test_what_the_disk_tier_cannot_do_is_refused_by_name(
    model: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        LLM(str(model), **{"kv_disk": str(tmp_path / "kv")} | options)
