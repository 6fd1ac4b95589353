"""The words for what a worker does while it starts."""

import pytest

from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (StartupProgress(StartupPhase.IMPORT), "importing PyTorch"),
        (StartupProgress(StartupPhase.FETCH), "fetching the model"),
        (
            StartupProgress(StartupPhase.FETCH, 12 << 20, 40 << 20),
            "fetching the model, 12 of 40 MiB",
        ),
        (StartupProgress(StartupPhase.COMPILE, 3, 13), "compiling the CPU kernels, 3 of 13"),
        (StartupProgress(StartupPhase.LOAD, 1, 4), "loading the weights, 25 %"),
        (StartupProgress(StartupPhase.PROFILE), "profiling the model"),
    ],
)
def test_a_phase_is_said_in_words(progress: StartupProgress, words: str) -> None:
    assert str(progress) == words


@pytest.mark.parametrize(("num_done", "num_total"), [(1, 0), (5, 4), (-1, 4)])
def test_more_than_all_cannot_be_done(num_done: int, num_total: int) -> None:
    with pytest.raises(ValueError, match="cannot be done"):
        StartupProgress(StartupPhase.LOAD, num_done, num_total)


def test_phases_have_the_numbers_of_the_contract() -> None:
    assert {f"STARTUP_PHASE_{phase.name}": phase.value for phase in StartupPhase} == {
        name: number for name, number in pb.StartupPhase.items() if number
    }
