"""`signalbox pull`, `list` and `rm`, as processes of their own, with a hub on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signalbox.commands.cached_models import hub_cache
from tests.fake_hub import GATED, TOKEN, FakeHub, running_hub, write_gguf
from tests.waiting import eventually

GGUF = "some-org/Tiny-GGUF"
CODE = (
    "import sys; from signalbox import cli; status = cli.main(sys.argv[1:]);"
    "sys.exit(99 if {'torch', 'transformers'} & {*sys.modules} else status)"
)
WEIGHTS_BYTES = 1 << 18
LLAMA = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 8, "num_attention_heads": 2,
         "num_hidden_layers": 1, "max_position_embeddings": 64}  # fmt: skip
WRITTEN_BYTES = 10 * 1024 * 1024
"""What huggingface_hub gathers before it writes."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub(tmp_path / "served") as served:
        folder = served.repository(GGUF)
        for tag, size in (("Q2_K", 1 << 20), ("Q4_K_M", 2 << 20), ("Q8_0", 3 << 20)):
            write_gguf(folder / f"tiny-{tag}.gguf", size)
        yield served


def start(hub: FakeHub, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a command that knows the hub by its environment alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    ours = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(hub.root.parent / "home"),
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        env=kept | ours | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: FakeHub, *arguments: str, status: int = 0, **variables: str) -> tuple[str, str]:
    """Returns what a command writes to standard output and to standard error."""
    process = start(hub, *arguments, **variables)
    out, err = process.communicate()
    assert process.returncode == status, err
    return out, err


def listed(hub: FakeHub) -> list[tuple[str, int, bool]]:
    models = json.loads(run(hub, "list", "--json")[0])
    return [(model["name"], model["num_bytes"], model["is_whole"]) for model in models]


def fetched_bytes(cache: Path) -> int:
    """Returns what downloads that have not ended have written."""
    return sum(part.stat().st_size for part in cache.rglob("*.incomplete"))


def test_a_model_is_pulled_listed_and_removed(hub: FakeHub) -> None:
    assert listed(hub) == []
    out, err = run(hub, "pull", f"{GGUF}:q8_0")
    assert Path(out.strip()).stat().st_size == 3 << 20
    assert f"{GGUF}:q8_0 is in the cache, 3.0 MiB" in err
    out, err = run(hub, "pull", GGUF)
    assert "taking tiny-Q4_K_M.gguf (2.0 MiB); name another" in err
    assert run(hub, "pull", GGUF, HF_HUB_OFFLINE="1")[0] == out
    assert listed(hub) == [(f"{GGUF}:Q4_K_M", 2 << 20, True), (f"{GGUF}:Q8_0", 3 << 20, True)]
    table = run(hub, "list")[0].splitlines()
    assert table[0].split()[:3] == [f"{GGUF}:Q4_K_M", "2.0", "MiB"]
    assert table[-1].startswith("2 models, 5.0 MiB, in ")
    assert run(hub, "rm", f"{GGUF}:Q8_0")[0] == f"removed {GGUF}:Q8_0, 3.0 MiB\n"
    assert listed(hub) == [(f"{GGUF}:Q4_K_M", 2 << 20, True)]
    run(hub, "rm", GGUF)
    assert listed(hub) == []
    blobs = [*(hub.root.parent / "home").rglob("blobs/*")]
    assert blobs == []


def test_a_dry_run_lists_what_is_missing(hub: FakeHub) -> None:
    out = run(hub, "pull", f"{GGUF}:Q8_0", "--dry-run")[0]
    assert out.split() == ["3,145,728", "tiny-Q8_0.gguf", "3,145,728", "bytes", "in", "all"]
    assert (hub.num_sent, listed(hub)) == (0, [])
    run(hub, "pull", f"{GGUF}:Q8_0")
    assert run(hub, "pull", f"{GGUF}:Q8_0", "--dry-run")[0].split()[0] == "0"


async def test_a_pull_that_is_interrupted_goes_on_where_it_ended(hub: FakeHub) -> None:
    file = hub.repository("some-org/Big-GGUF") / "big-Q8_0.gguf"
    write_gguf(file, 3 * WRITTEN_BYTES)
    hub.stall_after = 2 * WRITTEN_BYTES
    pulling = start(hub, "pull", "some-org/Big-GGUF")
    cache = hub.root.parent / "home"
    await eventually(lambda: fetched_bytes(cache) == 2 * WRITTEN_BYTES)
    pulling.send_signal(signal.SIGINT)
    pulling.communicate()
    assert pulling.returncode == 130
    hub.go_on.set()
    assert listed(hub) == [("some-org/Big-GGUF", 2 * WRITTEN_BYTES, False)]
    assert "incomplete; pull it again to go on" in run(hub, "list")[0]
    hub.asked.clear()
    path = Path(run(hub, "pull", "some-org/Big-GGUF")[0].strip())
    ranges = [one.range for one in hub.asked if one.method == "GET" and "/resolve/" in one.path]
    assert ranges[-1:] == [f"bytes={2 * WRITTEN_BYTES}-"]
    assert len(ranges) == 2  # after the head, which tells whether the model is served
    assert path.read_bytes() == file.read_bytes()  # noqa: ASYNC240 (nothing else runs)
    assert listed(hub) == [("some-org/Big-GGUF:Q8_0", 3 * WRITTEN_BYTES, True)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["pull", "some-org/None"], "there is no such model, or it is private"),
        (["pull", GATED], "access is gated; accept its terms on the hub and set HF_TOKEN"),
        (["pull", "/no/id"], "/no/id is no hub id; give org/name or org/name:Q4_K_M"),
        (["pull", "/tmp"], "/tmp is here already; `signalbox doctor /tmp` describes it"),
        (["pull", f"{GGUF}:Q9"], f"{GGUF} has no Q9; it has Q2_K (1.0 MiB), Q4_K_M (2.0 MiB),"),
        (["rm", "some-org/None"], "some-org/None is not in the cache; see `signalbox list`"),
    ],
)
def test_what_cannot_be_done_is_one_line(hub: FakeHub, arguments: list[str], reason: str) -> None:
    write_gguf(hub.repository(GATED) / "tiny-Q8_0.gguf", 1 << 16)
    err = run(hub, *arguments, status=1)[1]
    last = [line for line in err.splitlines() if line.startswith("signalbox ")]
    assert len(last) == 1
    assert reason in last[0]
    assert "Traceback" not in err
    if arguments[-1] == GATED:
        assert run(hub, *arguments, HF_TOKEN=TOKEN)[0].strip().endswith("tiny-Q8_0.gguf")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"x-Q4_0.gguf": "rwkv7"},
            "architecture not supported: rwkv7 in some-org/Other/x-Q4_0.gguf",
        ),
        (
            {"config.json": {"architectures": ["LlamaForCausalLM"],
                             "quantization_config": {"quant_method": "aqlm"}}},
            "the checkpoint is quantised by 'aqlm', which is not supported",
        ),
        (
            {"config.json": {"architectures": ["Glm5NextForConditionalGeneration"],
                             "text_config": {"model_type": "glm5_next_text"}}},
            "architecture not supported: Glm5NextForConditionalGeneration (its text part is",
        ),
    ],
)  # fmt: skip
def test_a_model_that_is_not_served_is_refused_before_its_weights_are_fetched(
    hub: FakeHub, files: dict[str, Any], reason: str
) -> None:
    folder = hub.repository("some-org/Other")
    for name, content in files.items():
        if name.endswith(".gguf"):
            write_gguf(folder / name, WEIGHTS_BYTES, content)
        else:
            (folder / name).write_text(json.dumps(LLAMA | content))
            (folder / "model.safetensors").write_bytes(os.urandom(WEIGHTS_BYTES))
    err = run(hub, "pull", "some-org/Other", status=1)[1]
    assert f"signalbox pull: some-org/Other is not fetched: {reason}" in err
    assert "`hf download some-org/Other` fetches it for other programs" in err
    assert 0 < hub.num_sent < WEIGHTS_BYTES / 2
    assert [one[2] for one in listed(hub)] in ([], [False])


def test_what_only_another_program_knows_is_pulled(hub: FakeHub) -> None:
    """An adapter, and a model of code in its repository, which is not run."""
    folder = hub.repository("some-org/Adapter")
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    path = Path(run(hub, "pull", "some-org/Adapter")[0].strip())
    assert {file.name for file in path.iterdir()} == {file.name for file in folder.iterdir()}
    folder = hub.repository("some-org/Code")
    (folder / "config.json").write_text(json.dumps({"architectures": ["Mine"], "auto_map": {}}))
    (folder / "code.py").write_text("raise SystemExit(3)")
    (folder / "model.safetensors").write_bytes(b"weights")
    run(hub, "pull", "some-org/Code", status=99)  # PyTorch was imported, to ask transformers
    assert ("some-org/Code", True) in [(name, is_whole) for name, _, is_whole in listed(hub)]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (3 * 86400, "3 days ago")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: int, words: str) -> None:
    assert hub_cache.age(1000.0, now=1000.0 + seconds) == words
