"""A step is what was planned, whatever happens to its sequences afterwards."""

import copy
import dataclasses
from typing import Any

from contract.step import Step
from scheduler_svc.kv.block_allocator import BlockCopy
from tests.scheduler_svc.make import make_request, make_scheduler


def plain(step: Step) -> dict[str, Any]:
    """Returns the step's fields as they are now."""
    return copy.deepcopy(
        {f.name: getattr(step, f.name) for f in dataclasses.fields(step)}
        | {"new": [dataclasses.asdict(new) for new in step.new]}
        | {"block_moves": [c.tolist() for name in MOVES for c in getattr(step.block_moves, name)]}
    )


MOVES = ("swap_out", "swap_in", "copy")


def test_a_step_shares_no_list_with_its_plan() -> None:
    scheduler = make_scheduler()
    scheduler.admission.add(make_request([1, 2, 3]))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    plan.forget.append(77)
    moves = plan.need_block_moves()
    moves.copy.append(BlockCopy(src=4, dst=5))
    step = plan.to_step(epoch=3)
    before = plain(step)
    for seq in plan.seqs:
        seq.block_table.append(9)
        seq.output_token_ids.append(5)
        seq.group.request.prompt_token_ids.append(4)
    for part in (plan, moves):
        for f in dataclasses.fields(part):
            if isinstance(value := getattr(part, f.name), list):
                value.clear()
    assert plain(step) == before
    assert step.finished.tolist() == [77] and len(step.new) == 1
