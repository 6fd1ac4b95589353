"""How long a request waits at the most: for which others, and how many steps for each.

In every step the first of those that run on a worker gets on, by a token or by what the others'
decodes leave of a chunk. It loses that only to one that ranks before it and comes in later. So a
request ends after as many steps as it and those that go before it take, each as the first; who goes
before it is the policy's to say.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from signalbox_scheduler.config import PolicyName, PolicySettings
from signalbox_scheduler.planning.group_selection import MAX_PASSED_OVER
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.policies import make_policy
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler

MAX_PROMPT = 22  # with its tokens all blocks of the smaller pool
MAX_TOKENS = 6
CHUNK = 8
MAX_QUEUED = 40
TENANTS = ("a", "b", "c")
AGING_S = {"priority": 6.0, "shortest-prompt": 1000.0}  # a step of 1 s for each token of prompt


class CountedQueue(AdmissionQueue):
    """Remembers what each flow was charged."""

    def __init__(self, policy: str) -> None:
        aging_s = AGING_S.get(policy, 60.0)
        super().__init__(
            make_policy(PolicySettings(scheduling_policy=policy, priority_aging_s=aging_s))
        )
        self.served: dict[str, float] = {}

    def charge(
        self,
        flow: str,
        served: Iterable[SequenceGroup] = (),
        *,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
    ) -> None:
        before = self.virtual_time(flow)
        super().charge(
            flow,
            served,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
        )
        self.served[flow] = self.served.get(flow, 0.0) + self.virtual_time(flow) - before

    def virtual_time(self, flow: str) -> float:
        return self._flows.virtual_time(flow)


class Adversary:
    """Sends what is meant to keep one request waiting: small, urgent, cached, of other tenants."""

    def __init__(self, queue: AdmissionQueue, random: Random, *, rate: int, alike: bool) -> None:
        self.sent: list[SequenceGroup] = []
        self.knows_of_probe = False
        self._queue = queue
        self._random = random
        self._rate = rate
        self._alike = alike  # and so cached, once the probe waits

    def send(self, now: float) -> None:
        for _ in range(self._random.randint(0, self._rate)):
            if len(self._queue) < MAX_QUEUED:
                self.sent.append(self._request(now))
                self._queue.add(self.sent[-1])

    def _request(self, now: float) -> SequenceGroup:
        random = self._random
        if self.knows_of_probe and self._alike:
            return make_request([1] * 5, max_tokens=MAX_TOKENS, arrival=now, priority=-2)
        sizes = (1, 2, 5, 9) if self.knows_of_probe else (1, 2, 5, 9, MAX_PROMPT)
        return make_request(
            [random.choice((1, 1, 2))] * random.choice(sizes),
            max_tokens=random.randint(1, MAX_TOKENS),
            arrival=now,
            priority=-2 if self.knows_of_probe else random.randint(-2, 2),
            tenant=random.choice(TENANTS),
        )


@dataclass(slots=True)
class Wait:
    """What may keep a request, the probe, from its end; one step after the other."""

    probe: SequenceGroup
    loops: list[Loop]
    places: int
    num_steps: int = 0
    before: dict[SequenceGroup, None] = field(default_factory=dict)
    """Requests that were there, rank before it, or came in while it did not run."""
    overtakers: list[SequenceGroup] = field(default_factory=list)
    """Those of them that rank behind it and came in before it."""
    num_lost_steps: int = 0
    """Those that were the first of all that ran until one that ranks before them came in."""

    def __post_init__(self) -> None:
        for loop in self.loops:
            self.before |= dict.fromkeys(loop.scheduler.running + loop.scheduler.swapped)
        for group in self.loops[0].scheduler.admission:
            if group.rank <= self.probe.rank and group is not self.probe:
                self.before[group] = None

    def steps_of(self, group: SequenceGroup) -> int:
        """Steps that a group takes as the first of all, of which one to come in beside others."""
        num_tokens = group.num_prompt_tokens + (group.max_tokens if group.num_preemptions else 0)
        chunk = CHUNK - (self.places - 1)
        return -(-num_tokens // chunk) + group.max_tokens - 1 + (self.places > 1)

    @property
    def bound(self) -> int:
        steps = sum(map(self.steps_of, self.before)) + self.steps_of(self.probe)
        return steps + self.num_lost_steps

    def step(self, now: float) -> None:
        self.num_steps += 1
        for loop in self.loops:
            loop.now = now - 1
            ran = list(loop.scheduler.running)
            is_out = self.probe not in ran
            loop.send()
            for group in loop.scheduler.running:
                if group not in ran:
                    self._note(group, ran, is_out=is_out)
            loop.answer()

    def _note(self, group: SequenceGroup, ran: list[SequenceGroup], *, is_out: bool) -> None:
        """Takes in that a group has come in beside those that ran."""
        if ran and ran[0].rank > group.rank:
            self.num_lost_steps += self.steps_of(ran[0])
        if group is self.probe or not (is_out or group.rank < self.probe.rank):
            return
        if group not in self.before and group.rank > self.probe.rank:
            self.overtakers.append(group)
        self.before[group] = None


@dataclass(slots=True)
class Service:
    """What the flows had been served, and their virtual times, when the probe came."""

    queue: CountedQueue
    probe: SequenceGroup
    served: dict[str, float] = field(init=False)
    virtual_times: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self.served = dict(self.queue.served)
        self.virtual_times = {name: self.queue.virtual_time(name) for name in ("", *TENANTS)}

    def assert_is_fair(self, *, places: int) -> None:
        """Others were served until they had caught up, and then what one turn may take.

        The last turn is a prompt and its tokens, beside tokens of those that run.
        """
        probe = self.probe
        own = self.queue.virtual_time(probe.flow)  # when it had its turn, which then was charged
        own -= probe.num_prompt_tokens - probe.num_cached_tokens
        for name, start in self.virtual_times.items():
            if name != probe.flow:
                served = self.queue.served.get(name, 0.0) - self.served.get(name, 0.0)
                assert served <= max(0.0, own - start) + MAX_PROMPT + 2 * places * MAX_TOKENS


def assert_turns_were_kept(wait: Wait, service: Service, *, policy: str) -> None:
    """Says of the probe, which has just come in, which others may have done so before."""
    behind = wait.overtakers
    if policy == "fair":
        service.assert_is_fair(places=wait.places)
        behind = [one for one in behind if one.flow == wait.probe.flow]
    passed = [one for one in (*wait.before, wait.probe) if one.num_passed_over]
    at_most = len(passed) if policy == "priority" else 1  # others pass equals, whichever is behind
    assert len(behind) <= MAX_PASSED_OVER * at_most


def make_workers(
    policy: str,
    *,
    num_workers: int = 1,
    num_gpu_blocks: int = 7,
    num_cpu_blocks: int = 0,
    places: int,
) -> tuple[CountedQueue, list[Loop]]:
    queue = CountedQueue(policy)
    return queue, [
        make_loop(
            make_scheduler(
                admission=queue,
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                max_num_seqs=places,
                max_num_batched_tokens=CHUNK,
            )
        )
        for _ in range(num_workers)
    ]


@settings(max_examples=60, phases=[Phase.reuse, Phase.generate])  # shrinks little
@given(
    seed=st.integers(0, 1 << 32),
    policy=st.sampled_from(PolicyName),
    num_workers=st.sampled_from([1, 2]),
    places=st.sampled_from([1, 3]),
    num_gpu_blocks=st.sampled_from([7, 14]),
    num_cpu_blocks=st.sampled_from([0, 4, 12]),
    rate=st.integers(1, 4),
    alike=st.booleans(),
    head_start=st.integers(0, 20),
)
def test_a_request_waits_no_longer_than_for_those_before_it(
    seed: int,
    policy: str,
    num_workers: int,
    places: int,
    num_gpu_blocks: int,
    num_cpu_blocks: int,
    rate: int,
    alike: bool,
    head_start: int,
) -> None:
    queue, loops = make_workers(
        policy,
        num_workers=num_workers,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        places=places,
    )
    adversary = Adversary(queue, Random(seed), rate=rate, alike=alike)
    now = 0.0
    for _ in range(head_start):
        now += 1
        adversary.send(now)
        for loop in loops:
            loop.now = now - 1
            loop.turn()
    # As large as fits, as unimportant as may be, of a tenant among others.
    probe = make_request(
        [3] * MAX_PROMPT, max_tokens=MAX_TOKENS, arrival=now, priority=2, tenant="a"
    )
    adversary.knows_of_probe = True
    queue.add(probe)
    wait = Wait(probe, loops, places)
    service = Service(queue, probe)
    while not probe.is_finished:
        now += 1
        adversary.send(now)
        is_waiting = not probe.has_started
        urgent = (one for one in adversary.sent if one.rank < probe.rank)
        wait.before |= dict.fromkeys(one for one in urgent if not one.is_finished)
        wait.step(now)
        assert wait.num_steps <= wait.bound
        if is_waiting and probe.has_started and num_workers == 1:
            assert_turns_were_kept(wait, service, policy=policy)
    for loop in loops:
        loop.scheduler.check()


@pytest.mark.parametrize(
    ("policy", "num_before"),
    [
        ("fcfs", 0),
        ("priority", 24),  # of -2, which for 24 seconds rank before one of 2
        ("shortest-prompt", 21),  # of one token, which for 21 seconds rank before one of 22
        ("fair", 20),  # of one token and one drawn, which cost 3, until another has got 60
    ],
)
def test_as_many_go_before_a_request_as_the_policy_says(policy: str, num_before: int) -> None:
    queue, (loop,) = make_workers(policy, places=1)
    probe = make_request([3] * MAX_PROMPT, max_tokens=MAX_TOKENS, priority=2, tenant="a")
    others = [
        make_request([10 + i], max_tokens=1, arrival=i + 0.5, priority=-2, tenant="b")
        for i in range(40)
    ]
    for one in others:
        queue.add(one)
    queue.charge(queue.policy.flow(probe), num_output_tokens=30)
    queue.add(probe)
    wait = Wait(probe, [loop], places=1)
    while not probe.has_started:
        wait.step(0.0)
    assert [one.is_finished for one in others] == [i < num_before for i in range(len(others))]
    while not probe.is_finished:
        wait.step(0.0)
    assert wait.num_steps == wait.bound
    loop.run()
    loop.scheduler.check()
