"""Block moves that are not allowed, and that their step changes nothing."""

from dataclasses import replace

import numpy as np
import pytest

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.step import Step
from tests.gpu_worker.builders import make_lease, make_mapping, make_new, make_step

MAP = make_mapping


REFUSED = {
    "copies out of the pool": make_step(copy=MAP({0: 16})),
    "copies from outside the pool": make_step(copy=MAP({-1: 0})),
    "copies twice to one block": make_step(copy=MAP({0: 5, 1: 5})),
    "copies from a destination": make_step(copy=MAP({0: 1, 1: 2})),
    "swaps out past the CPU pool": make_step(swap_out=MAP({0: 4})),
    "swaps in from past the CPU pool": make_step(swap_in=MAP({4: 0})),
    "swaps in twice to one block": make_step(swap_in=MAP({0: 5, 1: 5})),
    "swaps out over what is swapped in": make_step(swap_out=MAP({5: 0}), swap_in=MAP({0: 6})),
    "map of unequal columns": make_step(
        copy=BlockMapping(np.array([1, 2], dtype=np.int32), np.array([3], dtype=np.int32))
    ),
}


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_a_step_of_refused_moves_changes_nothing(step: Step) -> None:
    lease = make_lease()
    step = replace(step, new=[make_new(1, [1, 2], [0])])
    with pytest.raises(InvalidArgument):
        lease.execute(step, arrived_ns=0)
    lease.table.check()
    assert len(lease.table) == 0
    lease.execute(make_step(new=step.new), arrived_ns=0)
    assert len(lease.table) == 1


@pytest.mark.parametrize("step", [make_step(swap_out=MAP({0: 0})), make_step(swap_in=MAP({0: 0}))])
def test_swapping_without_swap_space_is_refused(step: Step) -> None:
    with pytest.raises(FailedPrecondition, match="swap space"):
        make_lease(num_cpu_blocks=0).execute(step, arrived_ns=0)
