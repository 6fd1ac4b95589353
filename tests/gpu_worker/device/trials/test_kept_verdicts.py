"""A verdict is kept for the next start, as long as nothing that it depends on has changed."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from signalbox_worker.device.trials import kept_verdicts
from signalbox_worker.device.trials.kept_verdicts import verdicts_of
from signalbox_worker.device.trials.trial import Trial, Verdict

CPU = torch.device("cpu")
GOOD = Verdict(seconds={"decode": 0.25})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels" / "trials"


class Trials:
    """Counts what is tried, and answers with given verdicts by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **verdicts: Verdict) -> None:
        self.verdicts, self.tried = verdicts, list[str]()
        monkeypatch.setattr(kept_verdicts, "run_trials", self._run)

    def _run(self, trials: Sequence[Trial], device: torch.device) -> list[Verdict]:
        self.tried += [trial.name for trial in trials]
        return [self.verdicts[trial.name] for trial in trials]

    def verdict(self, name: str, **arguments: object) -> Verdict:
        return verdicts_of([make_trial(name, **arguments)], CPU)[0]


def make_trial(name: str, **arguments: object) -> Trial:
    return Trial(name=name, function="module:function", arguments={"name": name} | arguments)


def test_what_was_tried_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, a=GOOD, b=Verdict(refusal="too large"))
    windows = {"windows": (None, 9)}  # which JSON gives back as a list
    assert trials.verdict("a", **windows) == trials.verdict("a", **windows) == GOOD
    assert trials.tried.pop() == "a"
    assert trials.verdict("a") == trials.verdict("a") == GOOD
    both = verdicts_of([make_trial("a"), make_trial("b")], CPU)
    assert both == [GOOD, Verdict(refusal="too large")]
    assert trials.verdict("b").refusal == "too large"
    assert trials.tried == ["a", "b"]


def test_another_shape_driver_or_version_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, a=GOOD)
    trials.verdict("a", head_size=64)
    trials.verdict("a", head_size=128)
    for changed in ("_version", "_driver", "_digest_of_sources"):
        with monkeypatch.context() as context:
            context.setattr(kept_verdicts, changed, lambda *_: "another")
            kept_verdicts._around.cache_clear()
            trials.verdict("a", head_size=64)
        kept_verdicts._around.cache_clear()
    assert trials.tried == ["a"] * 4  # a CPU has no driver


def test_a_fault_is_kept_and_the_log_says_how_to_try_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trials = Trials(monkeypatch, a=Verdict(fault="it has not ended within 300 s"))
    trials.verdict("a")
    caplog.clear()
    assert trials.verdict("a").fault == "it has not ended within 300 s"
    (path,) = folder.glob("*.json")
    assert f"not ended within 300 s; delete {path} to try again" in caplog.text
    path.unlink()
    trials.verdict("a")
    assert trials.tried == ["a", "a"]


def test_an_error_that_may_come_of_what_is_around_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch, a=Verdict(fault="no C compiler", is_lasting=False))
    assert trials.verdict("a") == trials.verdict("a")
    assert trials.tried == ["a", "a"]
    assert not list(folder.glob("*.json"))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"subject": {}, "verdict": {}}', "\x00\xff"])
def test_a_file_that_says_nothing_is_written_anew(
    content: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trials = Trials(monkeypatch, a=GOOD)
    trials.verdict("a")
    (path,) = folder.glob("*.json")
    path.write_bytes(content.encode("latin-1"))
    assert trials.verdict("a") == GOOD
    assert f"{path} is not used, and the trial is repeated" in caplog.text
    assert trials.verdict("a") == GOOD
    assert trials.tried == ["a", "a"]


def test_a_file_that_others_may_write_is_not_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trials = Trials(monkeypatch, a=GOOD)
    trials.verdict("a")
    (path,) = folder.glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    content["verdict"]["fault"] = "forged"
    path.write_text(json.dumps(content))
    path.chmod(0o666)
    assert trials.verdict("a") == GOOD
    assert "another user can write it" in caplog.text
    assert path.stat().st_mode & 0o777 == 0o600  # written anew
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert trials.verdict("a") == GOOD
    assert trials.tried == ["a"] * 3


def test_without_a_folder_trials_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kernels").write_text("a file where the folder would be")
    trials = Trials(monkeypatch, a=GOOD)
    assert trials.verdict("a") == trials.verdict("a") == GOOD
    assert trials.tried == ["a", "a"]
    assert "verdicts of trials are not kept: " in caplog.text


def test_a_folder_that_refuses_a_file_costs_the_next_start_a_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    trials = Trials(monkeypatch, a=GOOD)
    monkeypatch.setattr(Path, "replace", refuse)
    assert trials.verdict("a") == GOOD
    assert "the verdict of a trial is not kept: [Errno 28]" in caplog.text
