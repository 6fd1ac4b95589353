"""Sources of drafts that installed packages bring, by the method of --speculative-config."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.config import ModelError, SpeculationConfig
from signalbox_worker.drafts.chain import make_proposer
from signalbox_worker.drafts.proposer import DraftAsk
from signalbox_worker.service.worker_settings import WorkerSettings
from signalbox_worker.speculation_settings import PROPOSERS
from tests.gpu_worker.builders import make_runner
from tests.gpu_worker.draft_loops import MOST, Loop, Wanted

MODULE = '''
from signalbox_worker.drafts.proposer import Drafts, NoProposer


class Counting(NoProposer):
    """Expects numbers to be counted on."""

    def __init__(self, config, *, vocab_size):
        self.config, self.vocab_size, self.ended = config, vocab_size, []

    def propose_one(self, ask):
        last = int(ask.token_ids[-1])
        return Drafts([(last + i) % self.vocab_size for i in range(1, 1 + ask.most)])

    def learn(self, ended):
        self.ended.append(ended.seq_id)


class Unfinished:
    def __init__(self, config, *, vocab_size):
        pass

    def propose(self, asks):
        return []


def broken(config, *, vocab_size):
    raise RuntimeError("no numbers")
'''
ENTRIES = {
    "count": "Counting",
    "unfinished": "Unfinished",
    "broken": "broken",
    "absent": "Absent",
    "eagle": "Counting",
}
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Installs a package, as pip would; returns its module."""
    name = f"counting_{next(_numbers)}"  # modules stay imported
    (tmp_path / f"{name}.py").write_text(MODULE)
    info = tmp_path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    lines = [f"{method} = {name}:{attribute}" for method, attribute in ENTRIES.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PROPOSERS}]", *lines]))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def made(**fields: Any) -> SpeculationConfig:
    return WorkerSettings(simulate=True, speculative_config=fields).speculation_config  # type: ignore[arg-type]


def test_a_method_of_a_package_is_chosen_by_its_name() -> None:
    config = made(method="count", num_speculative_tokens=3)
    assert (config.num_tokens, config.method) == (3, "count")
    assert config.sources == (DraftSource.GRAMMAR, DraftSource.PREDICTION, DraftSource.PACKAGE)
    ask = DraftAsk(1, np.array([7, 8], dtype=np.int32), 1, 3, np.empty(0, dtype=np.int32), None)
    (found,) = make_proposer(config, vocab_size=10).propose([ask])
    assert ([*found.token_ids], found.source) == ([9, 0, 1], DraftSource.PACKAGE)


def test_a_package_may_bring_a_method_that_is_refused_without_it() -> None:
    assert made(method="eagle").method == "eagle"


def test_a_worker_computes_the_drafts_of_a_package_and_draws_the_same_tokens() -> None:
    runner = make_runner(
        speculation=made(method="count"),
        num_gpu_blocks=64,
        block_size=16,
        max_model_len=256,
        max_num_batched_tokens=512,
    )
    wanted = [Wanted(prompt=[1, 2, 3], params=SamplingParams(temperature=0.0))]
    plain = Loop(runner).generate(wanted, num_tokens=12)
    loop = Loop(runner, proposer=runner.make_proposer())
    assert loop.generate(wanted, num_tokens=12, limit=lambda: MOST) == plain
    assert loop.num_drafts


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("unfinished", "makes no Proposer: it has no learn, forget"),
        ("broken", r"cannot be used \(RuntimeError: no numbers\)"),
        ("absent", r"cannot be used \(AttributeError: "),
    ],
)
def test_a_start_fails_where_a_package_cannot_be_used(
    method: str, reason: str, module: str
) -> None:
    runner = make_runner(speculation=made(method=method))
    attribute = ENTRIES[method]
    with pytest.raises(
        ModelError, match=f"'{method}' of {PROPOSERS}: {module}:{attribute} {reason}"
    ):
        runner.profile()


def test_a_package_that_is_gone_is_named() -> None:
    config = SpeculationConfig(num_tokens=1, sources=(DraftSource.PACKAGE,), method="gone")
    with pytest.raises(ModelError, match="no installed package has the method 'gone'"):
        make_proposer(config, vocab_size=10)


def test_what_a_package_does_not_take_is_refused_or_told() -> None:
    with pytest.raises(ValueError, match="model has no meaning for the method 'count'"):
        made(method="count", model="org/small")
    with pytest.raises(ValueError, match="no installed package brings it"):
        made(method="counts")
    fields = {"method": "count", "prompt_lookup_max": 3}
    settings = WorkerSettings(simulate=True, speculative_config=fields)  # type: ignore[arg-type]
    assert settings.speculation_notices == [
        "speculative_config: prompt_lookup_max has no effect: it is of another method"
    ]
