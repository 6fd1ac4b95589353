"""What a worker's process makes of its settings."""

import pytest

from signalbox.stack.service_runner import simulated_runner
from signalbox_worker.service.worker_settings import WorkerSettings
from signalbox_worker.speculation_settings import USUAL_DRAFT_TOKENS


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 0),
        ({"speculation": True}, USUAL_DRAFT_TOKENS),
        ({"speculation": True, "simulated_pooling": "mean"}, 0),
    ],
)
def test_a_simulated_worker_announces_the_drafts_that_are_asked_for(
    settings: dict[str, object], most: int
) -> None:
    runner = simulated_runner(WorkerSettings(simulate=True, **settings))()  # type: ignore[arg-type]
    assert runner.profile().max_draft_tokens == most
    runner.close()
