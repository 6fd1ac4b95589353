"""What tenants get of simulated workers while both wait, under fair and not under fcfs."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from signalbox_scheduler.config import PolicySettings, PreemptionMode
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler

PROMPT_TOKENS = 6
PLACES = 4


@dataclass(slots=True)
class Service:
    """Workers, what tenants ask them for, and how many tokens came of it."""

    loops: list[Loop]
    groups: list[SequenceGroup] = field(default_factory=list)

    @property
    def admission(self) -> AdmissionQueue:
        return self.loops[0].scheduler.admission

    def ask(self, tenant: str, *, max_tokens: int = 8) -> None:
        number = len(self.groups)
        prompt = [number % 90 + 1, number // 90, *[7] * (PROMPT_TOKENS - 2)]
        group = make_request(prompt, tenant=tenant, max_tokens=max_tokens, arrival=float(number))
        self.groups.append(group)
        self.admission.add(group)

    def step(self) -> None:
        for loop in self.loops:
            loop.send()
        for loop in self.loops:
            loop.answer()

    @property
    def served(self) -> Counter[str]:
        """What each tenant has got, weighed as fair does by default."""
        served: Counter[str] = Counter()
        for group in self.groups:
            if group.has_started:
                served[group.request.tenant] += group.num_prompt_tokens - group.num_cached_tokens
            served[group.request.tenant] += 2 * group.num_completion_tokens
        return served

    def finish(self) -> None:
        for loop in self.loops:
            loop.run()
        for loop in self.loops:
            loop.scheduler.check()
        assert all(group.is_finished for group in self.groups)


def make_service(policy: str, *, num_workers: int = 1, **options: int) -> Service:
    admission = AdmissionQueue(make_policy(PolicySettings(scheduling_policy=policy)))
    options = {"max_num_seqs": PLACES, "num_gpu_blocks": 24} | options
    schedulers = [
        make_scheduler(admission=admission, mode=PreemptionMode.RECOMPUTE, **options)
        for _ in range(num_workers)
    ]
    return Service([make_loop(scheduler) for scheduler in schedulers])


def most_unequal(num_workers: int, *, max_tokens: int) -> int:
    """What two tenants that wait may differ by: twice what runs at a time, says the paper."""
    return 2 * num_workers * PLACES * (PROMPT_TOKENS + 2 * max_tokens)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("flood_tokens", [8, 24])
def test_a_tenant_that_floods_gets_no_more_than_another(
    num_workers: int, flood_tokens: int
) -> None:
    service = make_service("fair", num_workers=num_workers)
    for _ in range(80):
        service.ask("flood", max_tokens=flood_tokens)
    for _ in range(10):  # so the flood has all places when the other comes
        service.step()
    before = service.served
    for _ in range(40):
        service.ask("modest")
    waiting = Counter({"flood": 1, "modest": 1})
    while len(waiting) == 2:
        gained = service.served - before
        bound = most_unequal(num_workers, max_tokens=flood_tokens)
        assert abs(gained["flood"] - gained["modest"]) <= bound
        service.step()
        waiting = Counter(group.request.tenant for group in service.admission)
    gained = service.served - before
    assert min(gained.values()) > 3 * most_unequal(num_workers, max_tokens=8) / num_workers / 4
    service.finish()


def test_under_fcfs_the_flood_goes_first() -> None:
    service = make_service("fcfs")
    for _ in range(80):
        service.ask("flood")
    for _ in range(40):
        service.ask("modest")
    while any(group.request.tenant == "flood" for group in service.admission):
        assert not service.served["modest"]
        service.step()
    service.finish()


def test_what_is_computed_again_is_not_charged_again() -> None:
    service = make_service("fair", num_gpu_blocks=12)
    for _ in range(8):
        service.ask("alone", max_tokens=24)
    service.finish()
    assert service.loops[0].scheduler.preemption.num_preemptions > 0
    flows = service.admission._flows
    assert flows.virtual_time("alone") == service.served["alone"]


def test_cached_tokens_and_those_of_every_branch_are_charged_for_what_they_are() -> None:
    service = make_service("fair")
    group = make_request([1] * 9, n=3, max_tokens=5, tenant="t")
    again = make_request([1] * 9, n=1, max_tokens=5, tenant="t", arrival=1.0)
    for one in (group, again):
        service.groups.append(one)
        service.admission.add(one)
        service.finish()
    assert again.num_cached_tokens == 8
    assert service.admission._flows.virtual_time("t") == (9 + 2 * 15) + (1 + 2 * 5)
