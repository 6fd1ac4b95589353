"""Models on the hub: which files are fetched, what is kept of them, what is refused in one line."""

import fcntl
import io
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest

from signalbox_contract.startup import StartupPhase, StartupProgress, ignore_progress
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.hub.download import download
from signalbox_worker.runner.loading.model_source import open_model
from signalbox_worker.runner.loading.opened_model import open_with_config
from tests.fake_hub import COMMIT, GATED, TOKEN, FakeHub, point_at, running_hub, write_gguf
from tests.gpu_worker.model_runners import WEIGHTS, make_runner, remove_files
from tests.gpu_worker.runner.loading.gguf_files import open_path
from tests.gpu_worker.tiny_models import make_model

GGUF = "some-org/Tiny-GGUF"
SIZES = {"tiny-Q2_K.gguf": 40, "tiny-Q4_K_M.gguf": 60, "tiny-Q8_0.gguf": 100}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine, and an empty cache."""
    with running_hub(tmp_path / "served") as served:
        point_at(monkeypatch, served.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served


def fetch(model: str) -> Path:
    return download(model, None, ignore_progress)


def make_repository(hub: FakeHub, sizes: Mapping[str, int] = SIZES, name: str = GGUF) -> Path:
    """Files of so many bytes, each of its own content."""
    folder = hub.repository(name)
    for file, size in sizes.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(os.urandom(size))
    return folder


def asked_ranges(hub: FakeHub) -> list[str | None]:
    """Ranges of the files that were asked for."""
    return [one.range for one in hub.asked if one.method == "GET" and "/resolve/" in one.path]


def test_hub_id_is_fetched_by_revision_and_named_after_its_last_part(hub: FakeHub) -> None:
    make_model(hub.repository())
    (hub.repository() / "consolidated.safetensors").write_bytes(b"the weights again")
    (hub.repository() / "LICENSE").write_text("not needed")
    told: list[StartupProgress] = []
    source = open_model(ModelConfig(model="some-org/Some-Model", revision="v2"), told.append)
    assert source.name == "Some-Model"
    assert source.directory is not None
    fetched = {file.name for file in source.directory.iterdir()}
    assert fetched == {file.name for file in hub.repository().iterdir()} - {
        "LICENSE",
        "consolidated.safetensors",
    }
    assert "/api/models/some-org/Some-Model/revision/v2" in {one.path for one in hub.asked}
    assert told[0] == StartupProgress(StartupPhase.FETCH)
    assert told[-1].phase is StartupPhase.FETCH
    assert told[-1].num_total > 0
    assert make_runner(source.directory).model.vocab_size == 97


def test_weights_of_older_models_are_fetched_where_there_are_no_others(hub: FakeHub) -> None:
    make_model(hub.repository())
    remove_files(hub.repository(), *WEIGHTS)
    (hub.repository() / "pytorch_model.bin").write_bytes(b"")
    source = open_path("some-org/Some-Model")
    assert source.directory is not None
    assert (source.directory / "pytorch_model.bin").is_file()


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (["adapter_model.safetensors", "pytorch_model.bin"], [1]),
        (["pytorch_model.bin", "model.safetensors"], [1]),
        (["pytorch_model.bin", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"], [0, 1]),
        (["0_BERT/model.safetensors", "2_Dense/pytorch_model.bin"], [0, 1]),
    ],
)
def test_weights_that_transformers_takes_are_fetched(
    files: list[str], taken: list[int], hub: FakeHub
) -> None:
    folder = make_repository(hub, dict.fromkeys(files, 40))
    (folder / "config.json").write_text("{}")
    path = fetch(GGUF)
    fetched = {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()}
    assert fetched - {"config.json"} == {files[number] for number in taken}


def test_old_index_beside_a_whole_file_lacks_nothing(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_repository(hub, {"model.safetensors": 40})
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    path = fetch(GGUF)
    point_at(monkeypatch, "http://127.0.0.1:9")
    with caplog.at_level(logging.INFO):
        assert fetch(GGUF) == path
    assert "using the copy" in caplog.text


@pytest.mark.parametrize("architecture", ["llama", "rwkv7"])
def test_weights_are_fetched_of_a_model_that_is_served(hub: FakeHub, architecture: str) -> None:
    """A worker asks for the head of a file first, and again for nothing that it has."""
    size = 1 << 20
    write_gguf(hub.repository(GGUF) / "x-Q4_0.gguf", size, architecture)
    config = ModelConfig(model=GGUF)
    if architecture == "llama":
        opened = open_with_config(config, ignore_progress)
        assert opened.shape.num_layers == 1
        assert size < hub.num_sent < 2 * size
        open_with_config(config, ignore_progress)
        assert hub.downloads() == ["x-Q4_0.gguf"] * 2
    else:
        with pytest.raises(ModelError, match="architecture not supported: rwkv7"):
            open_with_config(config, ignore_progress)
        assert 0 < hub.num_sent < size / 2


def test_model_that_transformers_cannot_run_either_is_refused_before_it_is_fetched(
    hub: FakeHub,
) -> None:
    make_model(hub.repository())
    config = {"architectures": ["MambaForCausalLM"], "vocab_size": 97, "hidden_size": 32}
    (hub.repository() / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="architecture not supported: MambaForCausalLM"):
        open_with_config(ModelConfig(model="some-org/Some-Model"), ignore_progress)
    assert hub.downloads()
    assert not any(file.endswith(".safetensors") for file in hub.downloads())


def test_model_that_the_disk_cannot_hold_is_refused_before_it_is_fetched(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(hub.repository())
    usage = shutil.disk_usage(hub.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"takes 0 MiB, and 0 MiB are free in .*; free some, or"):
        open_path("some-org/Some-Model")
    assert not [*(hub.root.parent / "cache").rglob("*.safetensors")]


def test_cached_model_needs_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(hub.repository())
    open_path("some-org/Some-Model")
    point_at(monkeypatch, "http://127.0.0.1:9")
    assert open_path("some-org/Some-Model").name == "Some-Model"


@contextmanager
def silent_hub() -> Iterator[str]:
    """Yields the URL of a port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def refuse_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where huggingface_hub would wait before it tries again."""

    def sleep(seconds: float) -> None:
        pytest.fail(f"it waits {seconds} s to try again")

    at_once = SimpleNamespace(**vars(time) | {"sleep": sleep})
    monkeypatch.setattr("huggingface_hub.utils._http.time", at_once)


@pytest.mark.parametrize("name", ["some-org/Some-Model", f"{GGUF}:Q4_K_M"])
@pytest.mark.parametrize("hub_is", ["gone", "silent", "ill"])
def test_a_whole_copy_is_used_at_once_where_the_hub_does_not_answer(
    name: str,
    hub_is: str,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_model(hub.repository())
    make_repository(hub)
    path = fetch(name)
    with silent_hub() as url:
        if hub_is == "ill":
            hub.is_ill = True
        else:
            point_at(monkeypatch, url if hub_is == "silent" else "http://127.0.0.1:9")
        if hub_is == "silent":
            monkeypatch.setattr("signalbox_worker.files.hub.download.ANSWER_S", 0.1)
        refuse_to_wait(monkeypatch)
        with caplog.at_level(logging.INFO):
            assert fetch(name) == path
    line = f"the hub does not answer; using the copy of {name} in the cache: {path}"
    assert caplog.messages.count(line) == 1


def test_a_line_of_the_library_is_written_once(hub: FakeHub) -> None:
    written = io.StringIO()
    logger = logging.getLogger("huggingface_hub")
    logger.addHandler(logging.StreamHandler(written))  # as the library itself does
    make_model(hub.repository())
    fetch("some-org/Some-Model")
    logger.warning("it tries again")
    assert written.getvalue() == ""
    assert logger.propagate  # to the handler of the service


@pytest.mark.parametrize("missing", ["config.json", "*-00002-of-*", "*.safetensors", None])
def test_a_part_of_a_model_is_no_copy_of_it(
    missing: str | None,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_model(hub.repository())
    copy = fetch("some-org/Some-Model")
    if missing is not None:
        remove_files(copy, missing)
    point_at(monkeypatch, "http://127.0.0.1:9")
    with caplog.at_level(logging.INFO), suppress(ModelError):  # by huggingface_hub's version
        fetch("some-org/Some-Model")
    assert ("using the copy" in caplog.text) is (missing is None)


def test_a_hub_that_answers_is_asked_though_there_is_a_copy(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    make_model(hub.repository())
    fetch("some-org/Some-Model")
    hub.asked.clear()
    with caplog.at_level(logging.INFO):
        fetch("some-org/Some-Model")
    assert "using the copy" not in caplog.text
    assert "/api/models/some-org/Some-Model/tree/main" in {one.path for one in hub.asked}


@pytest.mark.parametrize(
    ("model", "revision", "reason"),
    [
        ("some-org/Some-Model", "v9", "it has no revision 'v9'"),
        ("some-org/Other-Model", None, "there is no such model, or it is private"),
    ],
)
def test_model_that_the_hub_lacks_is_one_clear_line(
    hub: FakeHub, model: str, revision: str | None, reason: str
) -> None:
    hub.repository()
    with pytest.raises(ModelError, match=f"cannot fetch {model} from the hub: {reason}") as error:
        open_path(model, revision=revision)
    assert "\n" not in str(error.value)


def test_hub_that_cannot_be_reached_is_one_clear_line(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(monkeypatch, "http://127.0.0.1:9")
    refuse_to_wait(monkeypatch)
    with pytest.raises(ModelError, match=r"cannot be reached .* give a local file") as error:
        open_path("some-org/Some-Model")
    assert "\n" not in str(error.value)


def test_the_library_adds_no_lines_of_its_own_in_a_new_process() -> None:
    """Its logger gets a handler at its first use, which may come late."""
    code = """
import contextlib, logging
from signalbox_contract.startup import ignore_progress
from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.download import download
with contextlib.suppress(ModelError):
    download("some-org/Some-Model", None, ignore_progress)
import huggingface_hub.utils.logging
print(huggingface_hub.utils.logging.get_logger().handlers)
"""
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


# ---- GGUF files ----


def test_only_the_chosen_file_is_fetched(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_repository(hub)
    (folder / "config.json").write_text("{}")
    path = fetch(f"hf.co/{GGUF}:q8_0")
    assert path.read_bytes() == (folder / "tiny-Q8_0.gguf").read_bytes()
    assert hub.downloads() == ["tiny-Q8_0.gguf"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_choice_is_told_in_one_line(hub: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_repository(hub)
    assert fetch(GGUF).name == "tiny-Q4_K_M.gguf"
    (folder / "tiny-Q4_K_M.gguf").unlink()
    assert fetch(GGUF).name == "tiny-Q2_K.gguf"
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [
        f"{GGUF}: taking tiny-Q4_K_M.gguf (0.1 KiB); name another as {GGUF}:TAG:"
        " Q2_K (0.0 KiB), Q8_0 (0.1 KiB)",
        f"{GGUF}: taking tiny-Q2_K.gguf (0.0 KiB), the nearest in size to Q4_K_M;"
        f" name another as {GGUF}:TAG: Q8_0 (0.1 KiB)",
    ]
    assert hub.downloads() == ["tiny-Q4_K_M.gguf", "tiny-Q2_K.gguf"]


def test_all_parts_of_a_split_file_are_fetched(hub: FakeHub) -> None:
    parts = [f"Q8_0/m-Q8_0-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    folder = make_repository(hub, dict.fromkeys(parts, 50) | {"m-Q2_K.gguf": 9})
    path = fetch(f"{GGUF}:Q8_0")
    assert path.name == "m-Q8_0-00001-of-00003.gguf"
    assert sorted(file.name for file in path.parent.iterdir()) == [part[5:] for part in parts]
    assert sorted(hub.downloads()) == parts
    (folder / parts[1]).unlink()
    with pytest.raises(ModelError, match=r"lacks Q8_0/m-Q8_0-00002-of-00003\.gguf"):
        fetch(f"{GGUF}:Q8_0")


def test_a_tag_on_a_repository_without_gguf_files_is_refused(hub: FakeHub) -> None:
    make_model(hub.repository())
    with pytest.raises(ModelError, match="Some-Model has no GGUF files; leave out :Q4_K_M"):
        fetch("some-org/Some-Model:Q4_K_M")


def test_weights_in_the_usual_layout_go_before_gguf_files(hub: FakeHub) -> None:
    folder = hub.repository()
    make_model(folder)
    (folder / "model-Q8_0.gguf").write_bytes(b"GGUF")
    assert fetch("some-org/Some-Model").is_dir()
    assert not [name for name in hub.downloads() if name.endswith(".gguf")]
    assert fetch("some-org/Some-Model:Q8_0").read_bytes() == b"GGUF"


# ---- a connection that breaks ----


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that are written at once; 10 MB otherwise. No pause between attempts."""
    size = 1 << 16
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", size)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    return size


def test_a_download_goes_on_where_the_connection_broke(hub: FakeHub, small_chunks: int) -> None:
    folder = make_repository(hub, {"big-Q4_K_M.gguf": 3 << 20})
    hub.cuts = [1 << 20, small_chunks]
    path = fetch(GGUF)
    assert asked_ranges(hub) == [None, "bytes=1048576-", f"bytes={(1 << 20) + small_chunks}-"]
    assert path.read_bytes() == (folder / "big-Q4_K_M.gguf").read_bytes()


@pytest.mark.usefixtures("small_chunks")
def test_a_download_that_failed_goes_on_the_next_time(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_repository(hub, {"big-Q4_K_M.gguf": 3 << 20})
    hub.cuts = [2 << 20] + [0] * 20
    with pytest.raises(ModelError, match=f"cannot fetch {GGUF} from the hub: .* which resumes"):
        fetch(GGUF)
    hub.cuts.clear()
    usage = shutil.disk_usage(hub.root)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=(1 << 20) - 1))
    with pytest.raises(ModelError, match="it takes 1 MiB, and 0 MiB are free"):
        fetch(GGUF)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    hub.asked.clear()
    told: list[StartupProgress] = []
    path = download(GGUF, None, told.append)
    assert asked_ranges(hub) == ["bytes=2097152-"]
    assert (told[1].num_done, told[1].num_total) == (2 << 20, 3 << 20)
    assert told[-1].num_done == told[-1].num_total == 3 << 20
    assert path.read_bytes() == (folder / "big-Q4_K_M.gguf").read_bytes()
    assert not [*Path(hub.root.parent / "cache").rglob("*.incomplete")]


def test_a_file_that_another_process_completes_just_before_is_used(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (make_repository(hub, {"big-Q4_K_M.gguf": 3 << 20}) / "big-Q4_K_M.gguf").read_bytes()

    def lock_after_another(file: BinaryIO, flags: int) -> None:
        path = Path(file.name)
        path.write_bytes(content)
        path.replace(path.with_suffix(""))
        path.write_bytes(b"the beginning of a third download")
        fcntl.flock(file, flags)

    own = SimpleNamespace(**vars(fcntl) | {"flock": lock_after_another})
    monkeypatch.setattr("signalbox_worker.files.hub.file_transfer.fcntl", own)
    assert fetch(GGUF).read_bytes() == content


# ---- tokens, and no network ----


def test_a_gated_model_asks_for_a_token(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(hub, {"tiny-Q8_0.gguf": 100}, GATED)
    with pytest.raises(ModelError, match=r"is gated; accept its terms on the hub and set HF_TOKEN"):
        fetch(GATED)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelError, match="the hub refuses the token; check HF_TOKEN") as refused:
        fetch(GATED)
    assert "hf_wrong" not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert fetch(GATED).name == "tiny-Q8_0.gguf"
    assert hub.asked[-1].authorization == f"Bearer {TOKEN}"


def test_offline_takes_what_is_cached(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(hub)
    with_hub = fetch(f"{GGUF}:Q8_0")
    hub.asked.clear()
    point_at(monkeypatch, hub.url, is_offline=True)
    assert fetch(f"{GGUF}:Q8_0") == fetch(GGUF) == with_hub
    assert COMMIT in str(with_hub)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set; unset it to fetch"):
        fetch("some-org/Other")
    with pytest.raises(ModelError, match="has no Q2_K; it has Q8_0"):
        fetch(f"{GGUF}:Q2_K")
    assert hub.asked == []
