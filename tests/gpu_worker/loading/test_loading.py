"""Directories and hub ids: what is read, and what is refused in one line."""

import http.server
import json
import shutil
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers import Tokenizer

from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.loading.source import ModelSource, open_model
from gpu_worker.runner import ModelRunner
from rpc.startup import StartupPhase, StartupProgress
from tests.gpu_worker.tiny_models import make_model, make_tokenizer


def open_path(path: Path | str, **fields: Any) -> ModelSource:
    return open_model(ModelConfig(model=str(path), **fields), lambda _: None)


def make_runner(path: Path) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype="float32", max_model_len=256),
        CacheConfig(max_num_seqs=8),
        device_config=DeviceConfig(device="cpu"),
    )
    runner.init_cache_engine(num_gpu_blocks=200, num_cpu_blocks=0)
    return runner


# ---- directories ----


def test_directory_gives_its_tokenizer_as_plain_strings(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    source = open_path(tmp_path)
    files = source.tokenizer_files()
    config = json.loads(files["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == "{{ messages }}"
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.encode("w3 w5 </s>").ids == [3, 5, 2]


def test_end_of_sequence_ids_come_from_generation_config_and_tokenizer(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert open_path(tmp_path).eos_token_ids() == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert open_path(tmp_path).eos_token_ids() == (2, 5, 7)


def test_named_templates_become_the_default_one(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    templates = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    files = open_path(tmp_path).tokenizer_files()
    assert json.loads(files["tokenizer_config.json"]) == {"chat_template": "d"}


def test_progress_is_told(tmp_path: Path) -> None:
    make_model(tmp_path)
    told: list[StartupProgress] = []
    runner = ModelRunner(ModelConfig(model=str(tmp_path)), CacheConfig(), progress=told.append)
    loading = [progress for progress in told if progress.phase is StartupPhase.LOAD]
    assert loading[0].num_total == 0
    num_weights = loading[-1].num_total
    assert [progress.num_done for progress in loading[1:]] == [*range(1, num_weights + 1)]
    runner.profile()
    assert told[-1] == StartupProgress(StartupPhase.PROFILE)


def without(path: Path, *names: str) -> None:
    for name in names:
        for file in path.glob(name):
            file.unlink()


def test_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_path(tmp_path)


def test_broken_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        open_path(tmp_path)


def test_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    without(tmp_path, "tokenizer*")
    with pytest.raises(ModelError, match=r"has no tokenizer; add its tokenizer\.json"):
        make_runner(tmp_path)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path)
    without(tmp_path, "*.safetensors", "*.index.json")
    with pytest.raises(ModelError, match=r"has no \.safetensors"):
        make_runner(tmp_path)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    make_model(tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    with pytest.raises(ModelError, match=f"lacks {shards[0].name}"):
        make_runner(tmp_path)


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    make_model(tmp_path)
    shard = min(tmp_path.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelError, match=f"{shard.name} cannot be read"):
        make_runner(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 60}, "has shape .* does not belong to these weights"),
        ({"num_hidden_layers": 4}, r"weights are missing, such as 'model\.layers\.3"),
        ({"num_hidden_layers": 2}, r"unexpected weight 'model\.layers\.2"),
    ],
)
def test_configuration_of_another_model_is_refused(
    change: dict[str, int], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "llama2", head_dim=8)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path)


# ---- names ----


@pytest.mark.parametrize("name", ["no/such/path", "missing.gguf", "a/b.gguf", "./nothing", "word"])
def test_wrong_path_is_one_clear_line(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"model not found: {name}; give a directory") as e:
        open_path(name)
    assert "\n" not in str(e.value)


def test_wrong_path_in_a_directory_that_exists_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(FileNotFoundError, match="model not found: models/smol"):
        open_path("models/smol")


COMMIT = "c0ffee" + "0" * 34


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Serves one directory as `some-org/Some-Model`, branch main and tag v2."""

    directory: Path
    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urllib.parse.unquote(self.path.partition("?")[0])
        self.asked.append(path)
        api, files = "/api/models/some-org/Some-Model", "/some-org/Some-Model/resolve/"
        names = sorted(file.name for file in self.directory.iterdir())
        if path in (f"{api}/revision/main", f"{api}/revision/v2"):
            self._json({"id": "some-org/Some-Model", "sha": COMMIT, "siblings": []})
        elif path == f"{api}/tree/{COMMIT}":
            sizes = {name: (self.directory / name).stat().st_size for name in names}
            entry = {"type": "file", "oid": "0" * 40}
            self._json([entry | {"path": name, "size": size} for name, size in sizes.items()])
        elif path.startswith(files):
            name = path.rpartition("/")[2]
            self._send(200, (self.directory / name).read_bytes(), {"ETag": f'"{name}"'})
        elif path.startswith(f"{api}/revision/"):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"X-Repo-Commit": COMMIT}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keeps quiet."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub on this machine; returns the directory that it serves."""
    FakeHub.directory = tmp_path / "served"
    FakeHub.directory.mkdir()
    FakeHub.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = f"http://127.0.0.1:{server.server_port}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield FakeHub.directory
    server.shutdown()
    server.server_close()
    thread.join()


def test_hub_id_is_fetched_by_revision_and_named_after_its_last_part(hub: Path) -> None:
    make_model(hub)
    (hub / "consolidated.safetensors").write_bytes(b"the weights again")
    (hub / "README.md").write_text("not needed")
    told: list[StartupProgress] = []
    source = open_model(ModelConfig(model="some-org/Some-Model", revision="v2"), told.append)
    assert source.name == "Some-Model"
    assert source.directory is not None
    fetched = {file.name for file in source.directory.iterdir()}
    assert fetched == {file.name for file in hub.iterdir()} - {
        "README.md",
        "consolidated.safetensors",
    }
    assert "/api/models/some-org/Some-Model/revision/v2" in FakeHub.asked
    assert told[0] == StartupProgress(StartupPhase.FETCH)
    assert told[-1].phase is StartupPhase.FETCH
    assert told[-1].num_total > 0
    assert make_runner(source.directory).model.vocab_size == 97


def test_weights_of_older_models_are_fetched_where_there_are_no_others(hub: Path) -> None:
    make_model(hub)
    without(hub, "*.safetensors", "*.index.json")
    (hub / "pytorch_model.bin").write_bytes(b"")
    source = open_path("some-org/Some-Model")
    assert source.directory is not None
    assert (source.directory / "pytorch_model.bin").is_file()


def test_model_that_the_disk_cannot_hold_is_refused_before_it_is_fetched(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(hub)
    usage = shutil.disk_usage(hub)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ModelError, match=r"takes 0 MiB, and 0 MiB are free in .*; free some, or"):
        open_path("some-org/Some-Model")
    assert not [*(hub.parent / "cache").rglob("*.safetensors")]


def test_cached_model_needs_no_hub(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(hub)
    open_path("some-org/Some-Model")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert open_path("some-org/Some-Model").name == "Some-Model"


@pytest.mark.parametrize(
    ("model", "revision", "reason"),
    [
        ("some-org/Some-Model", "v9", "it has no revision 'v9'"),
        ("some-org/Other-Model", None, "there is no such model, or it is private"),
    ],
)
def test_model_that_the_hub_lacks_is_one_clear_line(
    hub: Path, model: str, revision: str | None, reason: str
) -> None:
    with pytest.raises(ModelError, match=f"cannot fetch {model} from the hub: {reason}") as error:
        open_path(model, revision=revision)
    assert "\n" not in str(error.value)


def test_hub_that_cannot_be_reached_is_one_clear_line(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"cannot be reached .* give a local directory") as error:
        open_path("some-org/Some-Model")
    assert "\n" not in str(error.value)
