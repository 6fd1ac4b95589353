"""The plan as objects is what the plan as a message decodes to."""

import dataclasses
from typing import Any

import numpy as np

from signalbox import SamplingParams
from signalbox.llm.in_process.engine_core import EPOCH
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_contract.step import Step, decode_step, encode_step
from signalbox_scheduler.config import PreemptionMode, SchedulingSettings
from signalbox_scheduler.planning.plan import StepPlan
from tests.signalbox.llm.make import make_engine, run


def plain(value: Any) -> Any:
    """Arrays as lists, so that steps compare."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def test_a_step_is_what_the_message_decodes_to() -> None:
    """In a run with forks, copies, patches, swaps, recomputation and logprobs."""
    seen = dict.fromkeys(("new", "forks", "patches", "swap_out", "swap_in", "copy", "finished"), 0)

    def compare(plan: StepPlan, step: Step) -> None:
        message = encode_step(plan.to_step(epoch=EPOCH))
        assert plain(step) == plain(decode_step(message))
        for name in seen:
            value = getattr(step if hasattr(step, name) else step.block_moves, name)
            seen[name] += len(value.src) if hasattr(value, "src") else len(value)

    for mode in PreemptionMode:
        config = CoreConfig(scheduling=SchedulingSettings(preemption_mode=mode))
        with make_engine(config, num_gpu_blocks=16, num_cpu_blocks=16) as engine:
            for i in range(10):
                params = SamplingParams(
                    seed=i, n=1 + i % 3, max_tokens=40, logprobs=1, stop_token_ids=[7], top_k=-1
                )
                engine.add_request(str(i), f"request {i} of the run", params)
            core = engine._core
            submit = core._worker.submit

            def spy(step: Step, submit: Any = submit, core: Any = core) -> Any:
                compare(core.scheduler.in_flight[-1], step)
                return submit(step)

            core._worker.submit = spy  # type: ignore[method-assign]
            run(engine)
    assert all(seen.values()), seen
