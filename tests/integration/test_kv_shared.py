"""Workers find each other's prefixes on a server, with the same tokens whatever it returns."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, SamplingParams
from signalbox_worker.kv.shared.shared_tier import SharedTier
from tests.gpu_worker.kv.shared.redis_servers import (
    RedisProcess,
    needs_redis,
    patient,
    redis,
    write_secret,
)
from tests.gpu_worker.tiny_models import make_model
from tests.scheduler_svc.make import transfers
from tests.signalbox.llm.make import assert_at_rest
from tests.waiting import EVENT_S

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("loading_pays", "patient_moves")]

PROMPT = list(range(3, 64)) * 3
NUM_BLOCKS = (len(PROMPT) - 1) // 16


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_secret(tmp_path / "key", b"k" * 32)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)


class Served:
    """An engine over the model, and its shared tier."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.engine = llm.llm_engine
        core = self.engine._core
        store = core._worker._runner.transfers.store  # type: ignore[union-attr]
        self.tier: SharedTier = store.store
        self.planning = transfers(core.scheduler)
        assert self.tier.opened.wait(EVENT_S)

    @property
    def num_hits(self) -> int:
        return self.planning.loading.counts.num_hits

    def tokens(self) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (output,) = self.llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    def end_moves(self) -> None:
        """Waits until all moves have ended, of which the results of steps tell."""
        deadline = time.monotonic() + EVENT_S
        while self.planning.transfers:
            assert time.monotonic() < deadline
            self.tokens()

    def store_prompt(self, num_blocks: int = NUM_BLOCKS) -> list[int]:
        """Has the prompt used until its blocks are on the server."""
        tokens = self.tokens()
        deadline = time.monotonic() + 120
        while self.planning.write_behind.num_blocks < num_blocks:
            assert time.monotonic() < deadline
            assert self.tokens() == tokens
        return tokens


@contextmanager
def serving(model: Path, url: str, **options: Any) -> Iterator[Served]:
    fields = {"kv_cache_memory": 0.05, "swap_space": 0.05, "max_model_len": 250, "num_threads": 1}
    with LLM(str(model), kv_store=url, **fields | options) as llm:
        served = Served(llm)
        yield served
        assert_at_rest(served.engine)


@pytest.fixture
def server() -> Iterator[RedisProcess]:
    with redis() as one:
        yield one


@needs_redis
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_worker_finds_what_another_has_computed(
    model: Path, key: Path, server: RedisProcess, backend: str
) -> None:
    options = {"kv_store_key": str(key), "cpu_backend": backend}
    with serving(model, server.url, **options) as served:
        expected = served.store_prompt()
    with serving(model, server.url, **options) as served:
        assert served.tokens() == expected
        assert served.num_hits == NUM_BLOCKS * 16


@needs_redis
@pytest.mark.parametrize(("family", "sizes"), [("qwen3.5", {}), ("gemma3", {"sliding_window": 21})])
def test_states_and_windows_are_found_on_a_server(
    tmp_path: Path, server: RedisProcess, family: str, sizes: dict[str, Any]
) -> None:
    make_model(tmp_path / "model", family, max_position_embeddings=256, **sizes)
    with serving(tmp_path / "model", server.url, cpu_backend="native") as served:
        blocks = served.engine._core.scheduler.blocks
        assert len(blocks.groups) > 1
        num_windows = sum(group.window > 0 for group in blocks.groups)
        expected = served.store_prompt(NUM_BLOCKS + 2 * num_windows + blocks.states.num_blocks)
        served.end_moves()
    with serving(tmp_path / "model", server.url, cpu_backend="native") as served:
        assert served.tokens() == expected
        assert served.num_hits == NUM_BLOCKS * 16


@needs_redis
def test_a_server_with_hostile_content_changes_no_token(
    model: Path, key: Path, server: RedisProcess
) -> None:
    with serving(model, server.url, kv_store_key=str(key)) as served:
        expected = served.store_prompt()
    names = server.keys()
    values = [server.get(name) for name in names]
    for name, value in zip(names, values[1:] + values[:1], strict=True):
        server.call(b"SET", name, value)
    with serving(model, server.url, kv_store_key=str(key)) as served:
        assert served.tokens() == expected
        assert served.num_hits == 0
        assert served.tier.usage().num_failed
    for name, value in zip(names, values, strict=True):
        server.call(b"SET", name, value[:-1] + bytes([value[-1] ^ 1]))
    with serving(model, server.url, kv_store_key=str(key)) as served:
        assert served.tokens() == expected
        assert served.num_hits == 0
    for name, value in zip(names, values, strict=True):
        server.call(b"SET", name, value)  # old ones, replayed
    with serving(model, server.url, kv_store_key=str(key)) as served:
        assert served.tokens() == expected
        assert served.num_hits == NUM_BLOCKS * 16


@needs_redis
def test_requests_are_answered_while_the_server_is_away(
    model: Path, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalbox_scheduler.transfers.write_behind.PAUSE_S", 0.1)
    with redis() as server:
        port = server.port
        with serving(model, server.url, kv_store_key=str(key)) as served:
            expected = served.store_prompt()
    with serving(model, f"redis://127.0.0.1:{port}", kv_store_key=str(key)) as served:
        assert served.tokens() == expected
        assert served.num_hits == 0
        with redis(port=port):
            served.store_prompt()  # it is used again


@needs_redis
def test_resetting_the_prefix_cache_empties_the_server(
    model: Path, key: Path, server: RedisProcess
) -> None:
    with serving(model, server.url, kv_store_key=str(key)) as served:
        served.store_prompt()
        assert server.keys()
        assert served.llm.reset_prefix_cache()
        deadline = time.monotonic() + 60
        while server.keys():
            assert time.monotonic() < deadline
            served.engine.step()


def test_a_folder_of_objects_is_a_store(model: Path, key: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    url = f"file://{tmp_path}/kv"
    with serving(model, url, kv_store_key=str(key)) as served:
        expected = served.store_prompt()
    with serving(model, url, kv_store_key=str(key)) as served:
        assert served.tokens() == expected
        assert served.num_hits % 16 == 0
        assert bool(served.num_hits) is any((tmp_path / "kv").rglob("*/*/*"))


def test_a_store_that_cannot_be_used_is_refused_at_the_start(model: Path, tmp_path: Path) -> None:
    key = write_secret(tmp_path / "key", b"short")
    (tmp_path / "kv").mkdir(mode=0o755)
    for url, given, message in (
        ("redis://localhost", key, "at least 32"),
        ("redis://localhost", tmp_path / "none", "No such file"),
        ("rediss://kv.example.com", None, "--kv-store-key"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=message):
            LLM(str(model), kv_store=url, kv_store_key=None if given is None else str(given))
