"""`signalbox pull`, `list` and `rm`, as processes of their own, with a hub on this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox.commands.cached_models import hub_cache
from tests.fake_hub import GATED, TOKEN, FakeHub, running_hub
from tests.waiting import eventually

GGUF = "some-org/Tiny-GGUF"
CODE = (
    "import sys; from signalbox import cli; status = cli.main(sys.argv[1:]);"
    "sys.exit(99 if {'torch', 'transformers'} & {*sys.modules} else status)"
)
WRITTEN_BYTES = 10 * 1024 * 1024
"""What huggingface_hub gathers before it writes."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    with running_hub(tmp_path / "served") as served:
        folder = served.repository(GGUF)
        for tag, size in (("Q2_K", 1 << 20), ("Q4_K_M", 2 << 20), ("Q8_0", 3 << 20)):
            (folder / f"tiny-{tag}.gguf").write_bytes(os.urandom(size))
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


async def test_a_pull_that_is_interrupted_goes_on_where_it_ended(hub: FakeHub) -> None:
    file = hub.repository("some-org/Big-GGUF") / "big-Q8_0.gguf"
    file.write_bytes(os.urandom(3 * WRITTEN_BYTES))
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
    assert ranges == [f"bytes={2 * WRITTEN_BYTES}-"]
    assert path.read_bytes() == file.read_bytes()  # noqa: ASYNC240 (nothing else runs)
    assert listed(hub) == [("some-org/Big-GGUF:Q8_0", 3 * WRITTEN_BYTES, True)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["pull", "some-org/None"], "there is no such model, or it is private"),
        (["pull", GATED], "access is gated; accept its terms on the hub and set HF_TOKEN"),
        (["pull", "/no/id"], "/no/id is no hub id; give org/name or org/name:Q4_K_M"),
        (["pull", f"{GGUF}:Q9"], f"{GGUF} has no Q9; it has Q2_K (1.0 MiB), Q4_K_M (2.0 MiB),"),
        (["rm", "some-org/None"], "some-org/None is not in the cache; see `signalbox list`"),
    ],
)
def test_what_cannot_be_done_is_one_line(hub: FakeHub, arguments: list[str], reason: str) -> None:
    (hub.repository(GATED) / "tiny-Q8_0.gguf").write_bytes(b"GGUF")
    err = run(hub, *arguments, status=1)[1]
    last = [line for line in err.splitlines() if line.startswith("signalbox ")]
    assert len(last) == 1
    assert reason in last[0]
    assert "Traceback" not in err
    if arguments[-1] == GATED:
        assert run(hub, *arguments, HF_TOKEN=TOKEN)[0].strip().endswith("tiny-Q8_0.gguf")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (3 * 86400, "3 days ago")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: int, words: str) -> None:
    assert hub_cache.age(1000.0, now=1000.0 + seconds) == words
