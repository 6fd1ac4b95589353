"""A request that fits comes in and ends within a bound, whatever others send meanwhile.

It waits for those that were there, those that come while it ages, MAX_PASSED_OVER more, and for
room that PLACES others may hold. Each of them is done STEPS after it is the first of all. Under
fair, where virtual times decide, it waits for as many as can be served until others have caught up.
"""

from random import Random

import hypothesis.strategies as st
from hypothesis import Phase, given, settings

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.config import POLICIES, PolicyConfig, PreemptionMode
from scheduler_svc.policy import make_policy
from scheduler_svc.pulling import MAX_PASSED_OVER
from scheduler_svc.sequence import SequenceGroup
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler

PLACES = 3
MAX_PROMPT = 22  # with its tokens all blocks of the smaller pool
MAX_TOKENS = 6
CHUNK = 8
AGEING_S = 6.0
STEPS = 2 * (MAX_PROMPT // (CHUNK - PLACES) + 1) + MAX_TOKENS + 4
"""A prompt in chunks beside decodes, once more after it was preempted, the tokens, the overlap."""
COST = MAX_PROMPT + 2 * MAX_TOKENS
TENANTS = ("a", "b", "c")
MAX_QUEUED = 40


class Adversary:
    """Sends what is meant to keep one request waiting: small, urgent, cached, of other tenants."""

    def __init__(
        self, admission: AdmissionQueue, random: Random, *, rate: int, alike: bool
    ) -> None:
        self.sent: list[SequenceGroup] = []
        self.knows_of_probe = False
        self._admission = admission
        self._random = random
        self._rate = rate
        self._alike = alike  # and so cached, once the probe waits

    def send(self, now: float) -> None:
        for _ in range(self._random.randint(0, self._rate)):
            if len(self._admission) < MAX_QUEUED:
                self.sent.append(self._request(now))
                self._admission.add(self.sent[-1])

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


AGEING_OF_PROBE_S = {
    "fcfs": 0.0,
    "priority": AGEING_S * 4,  # from -2 to 2
    "shortest-prompt": AGEING_S * MAX_PROMPT / 1000,
}


def num_before(probe: SequenceGroup, adversary: Adversary, *, policy: str) -> int:
    """How many live when the probe comes, or come before it has aged."""
    aged_at = probe.times.arrival + AGEING_OF_PROBE_S[policy]
    return sum(one.times.arrival <= aged_at for one in adversary.sent)


def num_before_under_fair(probe: SequenceGroup, admission: AdmissionQueue) -> int:
    """How many turns others can have until the probe's tenant is the one served least.

    Every turn costs at least the one prompt token that is never cached.
    """
    flows = admission._flows
    own = [one for one in admission if one.tenant == probe.tenant]
    reach = flows.virtual_time(probe.flow) + (len(own) + PLACES) * COST
    others = [flows.virtual_time(name) for name in ("", *TENANTS) if name != probe.tenant]
    return int(len(own) + sum(max(0.0, reach - time) + COST for time in others))


def make_workers(
    policy: str, *, num_workers: int, num_gpu_blocks: int, num_cpu_blocks: int
) -> list[Loop]:
    admission = AdmissionQueue(make_policy(PolicyConfig(name=policy, ageing_s=AGEING_S)))
    return [
        make_loop(
            make_scheduler(
                admission=admission,
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                max_num_seqs=PLACES,
                max_num_batched_tokens=CHUNK,
                mode=PreemptionMode.SWAP,
            )
        )
        for _ in range(num_workers)
    ]


@settings(max_examples=40, deadline=None, phases=[Phase.reuse, Phase.generate])  # shrinks little
@given(
    seed=st.integers(0, 1 << 32),
    policy=st.sampled_from(POLICIES),
    num_workers=st.sampled_from([1, 2]),
    num_gpu_blocks=st.sampled_from([7, 14]),
    num_cpu_blocks=st.sampled_from([0, 4, 12]),
    rate=st.integers(1, 4),
    alike=st.booleans(),
    head_start=st.integers(0, 20),
)
def test_a_request_that_fits_comes_in_within_a_bound(
    seed: int,
    policy: str,
    num_workers: int,
    num_gpu_blocks: int,
    num_cpu_blocks: int,
    rate: int,
    alike: bool,
    head_start: int,
) -> None:
    loops = make_workers(
        policy,
        num_workers=num_workers,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
    )
    admission = loops[0].scheduler.admission
    adversary = Adversary(admission, Random(seed), rate=rate, alike=alike)
    step = 0.0
    for _ in range(head_start):
        step += 1
        advance(loops, adversary, step)
    # As large as fits, as unimportant as may be, of a tenant among others.
    probe = make_request(
        [3] * MAX_PROMPT, max_tokens=MAX_TOKENS, arrival=step, priority=2, tenant="a"
    )
    adversary.sent = [one for one in adversary.sent if not one.is_finished]
    adversary.knows_of_probe = True
    admission.add(probe)
    fair_bound = num_before_under_fair(probe, admission)
    num_steps = 0
    while not probe.is_finished:
        num_steps, step = num_steps + 1, step + 1
        before = fair_bound if policy == "fair" else num_before(probe, adversary, policy=policy)
        bound = (before + MAX_PASSED_OVER + PLACES) * STEPS
        assert num_steps <= (2 * bound if probe.has_started else bound)
        advance(loops, adversary, step)
    for loop in loops:
        loop.scheduler.check()


def advance(loops: list[Loop], adversary: Adversary, now: float) -> None:
    adversary.send(now)
    for loop in loops:
        loop.now = now - 1
        loop.send()
        loop.answer()
