"""What several modules of these tests run on."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.harness.hosts import Host, NoHosts, hosts
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.draft_lengths import DraftLengths
from signalbox_scheduler.transfers import migration_rounds, prefix_loader
from signalbox_worker.kv.peers import peer_client
from signalbox_worker.runner import local_runner
from tests.gpu_worker.foresight import Foresight

if TYPE_CHECKING:
    from signalbox_worker.runner.local_runner import LocalRunner


@pytest.fixture(scope="session")
def runner() -> "LocalRunner":
    """The demo model in float32, loaded once; each worker that takes it makes its cache anew."""
    from tests.integration.demo_model.test_model_parity import make_runner  # imports torch

    return make_runner()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a tiny Llama."""
    from tests.gpu_worker.tiny_models import make_llama  # imports torch

    path = tmp_path_factory.mktemp("model")
    make_llama(path)
    return path


@pytest.fixture
def three() -> Iterator[list[Host]]:
    """Three hosts; skips where network namespaces may not be made."""
    try:
        with hosts(3) as made:
            yield made
    except NoHosts as error:
        pytest.skip(str(error))


@pytest.fixture
def loading_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model as tiny as that one would compute a block as fast as it arrives."""
    monkeypatch.setattr(CostModel, "is_less", lambda *_, **__: True)


@pytest.fixture
def keeping_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one slow copy between the pools, of a busy machine, ends the use of the CPU pool."""
    monkeypatch.setattr(CostModel, "keeps_more", lambda *_, **__: True)
    monkeypatch.setattr(CostModel, "fetches", lambda *_, **__: True)


@pytest.fixture
def patient_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no move of blocks be late because the machine is busy."""
    monkeypatch.setattr(migration_rounds, "GRACE_S", 60.0)
    monkeypatch.setattr(prefix_loader, "GRACE_S", 60.0)
    monkeypatch.setattr(peer_client, "TOLD_S", 60.0)


@pytest.fixture
def drafts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model as tiny as that one would compute a draft as slowly as a token."""
    monkeypatch.setattr(
        DraftLengths, "observe_step", lambda self, **_: setattr(self, "is_timed", True)
    )


@pytest.fixture
def foresight(monkeypatch: pytest.MonkeyPatch, drafts_pay: None) -> Foresight:
    """What all workers draft, as many tokens as they may."""
    made = Foresight()
    monkeypatch.setattr(local_runner, "make_proposer", lambda *_, **__: made)
    return made
