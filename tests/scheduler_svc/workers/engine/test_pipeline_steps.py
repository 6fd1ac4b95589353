"""Steps of a worker with pipeline stages, on simulated time: how busy its stages are."""

import math
from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from signalbox_contract.step_result import StepTimings
from signalbox_scheduler.planning.microbatch_planner import MicrobatchPlanner
from signalbox_worker.runner.simulated.stage_times import StageTimes
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import make_request, make_scheduler, outputs
from tests.scheduler_svc.workers.engine.test_step_loop import Driver

NUM_STAGES = 3
MS = 1_000_000
OVERHEAD_NS = MS // 2
"""Of planning, sending and reading one step."""


@dataclass
class Pipeline:
    """A scheduler over a worker whose stages are equal."""

    fixed_ns: int
    token_ns: int
    shares: tuple[int, ...] = (1,) * NUM_STAGES
    busy_ns: int = 0
    num_tokens: list[int] = field(default_factory=list)
    """Of each step."""

    def __post_init__(self) -> None:
        self.driver = Driver(
            make_scheduler(
                num_stages=len(self.shares),
                max_in_flight=len(self.shares) + 1,
                num_gpu_blocks=4096,
                max_model_len=512,
                max_num_batched_tokens=512,
                prefill_spread_steps=16,
            )
        )
        self._stages = StageTimes(self.shares)
        self._ends: deque[tuple[int, int]] = deque()
        self._now_ns = 0

    def add(self, *, num_requests: int, max_tokens: int, prompt_tokens: int = 3) -> None:
        for index in range(num_requests):
            prompt = [7 + (index + i) % 40 for i in range(prompt_tokens)]
            request = make_request(prompt, max_tokens=max_tokens, arrival=float(index))
            self.driver.scheduler.admission.add(request)

    def run(self) -> float:
        """Runs until all have ended; returns the share of the time that a stage is busy."""
        while self._fill() or self._ends:
            ends_at, forward_ns = self._ends.popleft()
            self._now_ns = max(self._now_ns, ends_at + OVERHEAD_NS // 2)
            driver = self.driver
            driver.now = self._now_ns / 1e9
            result = driver.worker.execute(driver.started.popleft())
            timings = StepTimings(0, 0, forward_ns, 0)
            driver.loop.complete(replace(result, timings=timings), driver.now)
            driver.scheduler.check()
        assert not self.driver.scheduler.has_unfinished
        return self.busy_ns / len(self.shares) / self._now_ns

    def _fill(self) -> int:
        first = len(self.driver.started)
        self.driver.now = self._now_ns / 1e9
        num_started = self.driver.fill()
        for plan in list(self.driver.scheduler.in_flight)[first:]:
            self.num_tokens.append(plan.total_tokens)
            forward_ns = len(self.shares) * (self.fixed_ns + self.token_ns * plan.total_tokens)
            self.busy_ns += forward_ns
            entered = self._now_ns + OVERHEAD_NS // 2
            ends_at, _ = self._stages.enter(entered, forward_ns)
            self._ends.append((ends_at, forward_ns))
        return num_started


@pytest.mark.parametrize(
    ("num_requests", "least", "most"), [(32, 0.95, 1.0), (8, 0.85, 1.0), (1, 0.31, 1 / 3)]
)
def test_stages_are_busy(num_requests: int, least: float, most: float) -> None:
    pipeline = Pipeline(fixed_ns=2 * MS, token_ns=MS)
    pipeline.add(num_requests=num_requests, max_tokens=100)
    assert least <= pipeline.run() <= most
    for group in pipeline.driver.ended:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=100)]


def test_sequences_are_divided_again_as_others_end() -> None:
    pipeline = Pipeline(fixed_ns=2 * MS, token_ns=MS)
    pipeline.add(num_requests=20, max_tokens=20)
    pipeline.add(num_requests=10, max_tokens=200)
    assert pipeline.run() >= 0.9
    assert max(pipeline.num_tokens[-30:]) <= 4, "ten sequences are in three or four steps"


def test_a_batch_that_would_be_no_faster_in_parts_is_not_divided() -> None:
    pipeline = Pipeline(fixed_ns=20 * MS, token_ns=1000)
    pipeline.add(num_requests=12, max_tokens=60)
    pipeline.run()
    assert pipeline.num_tokens[-20:] == [12] * 20


def test_chunks_of_one_prompt_follow_each_other() -> None:
    """A prompt of 500 tokens leaves three stages in at most 0.7 of the time that one takes."""
    pipeline = Pipeline(fixed_ns=2 * MS, token_ns=MS)
    pipeline.add(num_requests=1, max_tokens=8)
    pipeline.run()  # measures what steps cost
    pipeline._now_ns, began_at = pipeline._now_ns, pipeline._now_ns
    pipeline.add(num_requests=1, max_tokens=1, prompt_tokens=500)
    pipeline.run()
    undivided_ns = NUM_STAGES * (2 + 500) * MS
    assert pipeline._now_ns - began_at <= 0.7 * undivided_ns


def test_one_stage_divides_nothing() -> None:
    division = MicrobatchPlanner(1)
    division.observe(num_tokens=4, forward_ns=9)
    assert division.most_decodes(num_decodes=9, num_ready=7, num_steps=1) == 7
    assert division.most_prompt_tokens(900) == 900


def test_no_cost_is_negative_where_steps_have_one_size() -> None:
    division = MicrobatchPlanner(3)
    for index in range(100):  # some sums are rounded up, and others down
        division.observe(num_tokens=3, forward_ns=1_000_001 + 7 * index)
        assert division._cost()[0] >= 0
        assert 1 <= division.most_prompt_tokens(100) <= 100


def test_a_fixed_cost_is_told_from_that_of_tokens() -> None:
    division = MicrobatchPlanner(3)
    for num_tokens in (4, 64, 4, 8):
        division.observe(num_tokens=num_tokens, forward_ns=3 * (1000 + 10 * num_tokens))
    fixed, of_token = division._cost()
    assert math.isclose(fixed, 1000, rel_tol=1e-9) and math.isclose(of_token, 10, rel_tol=1e-9)
