"""What a step does on a CPU through PyTorch: all that it does through a native program."""

from pathlib import Path

import pytest

from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.runner.native.test_steps import (  # noqa: F401
    test_branches_of_one_token_draw_from_its_logits,
    test_poisoned_sequence_fails_alone_and_its_blocks_can_be_reused,
    test_step_without_rows_draws_nothing_and_the_next_one_goes_on,
    test_swapped_sequence_goes_on_as_if_nothing_had_happened,
)


@pytest.fixture
def runner(native_tiny: Path) -> LocalRunner:
    """Takes the place of the native one."""
    runner: LocalRunner = make_runner(native_tiny, cpu_backend="torch", dtype="float32")
    return runner
