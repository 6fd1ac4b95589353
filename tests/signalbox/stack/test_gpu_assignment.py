"""Which GPUs the workers of a local stack get."""

import pytest

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack import gpu_assignment, worker_launcher
from signalbox.stack.gpu_assignment import gpu_share, visible_gpus
from signalbox.stack.stack_addresses import StackAddresses
from signalbox.stack.worker_launcher import LocalLauncher


@pytest.mark.parametrize(
    ("num_ranks", "shares"),
    [
        (2, ["0,1", "2,3", None]),  # none is left for the third: it sees them all
        (1, ["0", "1", "2", "3", None]),
        (8, [None]),
    ],
)
def test_workers_have_gpus_of_their_own_where_there_are_enough(
    num_ranks: int, shares: list[str | None]
) -> None:
    gpus = ["0", "1", "2", "3"]
    found = [gpu_share(gpus, place=place, num_ranks=num_ranks) for place in range(len(shares))]
    assert [share.get("CUDA_VISIBLE_DEVICES") for share in found] == shares


def test_gpus_that_are_hidden_from_us_are_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_assignment, "nvidia_gpus", lambda: ["a card"] * 8)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3, GPU-8f1"}) == ["3", "GPU-8f1"]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert visible_gpus({}) == [str(index) for index in range(8)]


def test_a_worker_that_is_added_to_one_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_launcher, "visible_gpus", lambda: ["0", "1"])
    settings = ServeSettings(model="m", workers=1)
    addresses = StackAddresses(settings)
    launcher = LocalLauncher(settings, addresses)
    found = [launcher.command(place).environment for place in range(3)]
    addresses.close()
    # The first sees both and takes GPU 0, as a worker that is alone; none is left for the third.
    assert [one.get("CUDA_VISIBLE_DEVICES") for one in found] == [None, "1", None]
