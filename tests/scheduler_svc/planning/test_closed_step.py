"""A step is what was planned, whatever happens to its sequences afterwards."""

import copy
import dataclasses
from typing import Any

from signalbox_contract.step import Step
from tests.scheduler_svc.make import make_request, make_scheduler


def plain(step: Step) -> dict[str, Any]:
    """Returns the step's fields as they are now."""
    return copy.deepcopy(
        {f.name: getattr(step, f.name) for f in dataclasses.fields(step) if f.name != "block_moves"}
        | {"new": [dataclasses.asdict(new) for new in step.new]}
    )


def test_a_step_shares_no_list_with_its_plan() -> None:
    scheduler = make_scheduler()
    scheduler.admission.add(make_request([1, 2, 3]))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    plan.forget.append(77)
    step = plan.to_step(epoch=3)
    before = plain(step)
    for seq in plan.seqs:
        seq.block_table.append(9)
        seq.output_token_ids.append(5)
        seq.group.request.prompt_token_ids.append(4)
    for f in dataclasses.fields(plan):
        if isinstance(value := getattr(plan, f.name), list):
            value.clear()
    assert plain(step) == before
    assert step.finished.tolist() == [77] and len(step.new) == 1
