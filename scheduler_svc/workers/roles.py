"""Which workers compute prompts, and which decode what those hand over (DistServe, OSDI 2024).

A worker asks for a role when it joins; under `auto` the load decides instead. What each does
follows from what is wanted of those that are there now: a role that has no worker is taken by those
of `both`, and if there are none all do both. So a worker that is lost or drains leaves no role
without one, and a role is never a reason to wait.
"""

import logging
import math
from collections.abc import Mapping
from typing import NamedTuple

from contract.worker_role import WorkerRole
from scheduler_svc.config import Disaggregation
from scheduler_svc.workers.step_loop import StepLoop
from scheduler_svc.workers.worker_pool import StepLoops

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
"""Time between two looks at the load."""
MOST_USE = 0.8
"""Share of a worker that its part of the load may take."""
LEAST_USE = 0.05
"""Share of the pool's time that prompts take before they are worth workers of their own."""


class Use(NamedTuple):
    """Load of a pool, in workers that it would fill."""

    prompts: float
    """Workers that prompts would keep busy."""
    decodes: float
    """Workers that sequences and blocks would fill; one with few decodes all the time, too."""


class Roles:
    """The roles of the workers of a cluster."""

    def __init__(self, mode: Disaggregation, loops: StepLoops) -> None:
        self.mode = mode
        self._loops = loops
        self._chosen: dict[StepLoop, WorkerRole] = {}
        """Roles under `auto` of the workers that the load was divided over."""
        self._roles: dict[StepLoop, WorkerRole] = {}
        self._proposed = 0
        self._look_at = 0.0
        self._seen: dict[StepLoop, int] = {}
        """Prompt tokens that each worker had computed at the last look."""

    def of(self, loop: StepLoop) -> WorkerRole:
        """Returns what a worker does now."""
        return self._roles.get(loop, WorkerRole.BOTH)

    def refusal(self, loop: StepLoop, *, pools: bool = False) -> str:
        """Returns why a worker cannot join this pool for the sake of roles; empty if it can.

        Args:
            pools: whether the model makes vectors of prompts, and no tokens.
        """
        pool = [loop, *(other for other in self._loops if not other.is_draining)]
        is_asked = any(one.asked_role is not WorkerRole.BOTH for one in pool)
        if self.mode is Disaggregation.OFF or not (is_asked or self.mode is Disaggregation.AUTO):
            return ""
        if pools:
            return (
                "a model that pools has workers that decode nothing; leave --role and"
                " --disaggregation out"
            )
        for one in pool:
            if one.scheduler.peer is None:
                return (
                    f"{_name(one, loop)} cannot hand requests over, as a pool with roles does;"
                    " give it more swap space (--swap-space), and the scheduler --prefix-caching"
                    " and --cpu-prefix-cache, or leave --role and --disaggregation out"
                )
        own, *others = (one.scheduler.peer for one in pool)
        for other, peer in zip(pool[1:], others, strict=True):
            if own is not None and peer is not None and not own.can_read(peer):
                return (
                    f"its KV blocks are not those of the worker at {other.worker_name}; in a pool"
                    " with roles all workers have the same weights, type of K and V, block size,"
                    " tensor-parallel size and pipeline-parallel size"
                )
        return ""

    def settle(self) -> bool:
        """Gives each worker its role in the pool as it is now; returns whether one has changed."""
        wanted = {loop: self._wanted(loop) for loop in self._loops if not loop.is_draining}
        before, self._roles = self._roles, resolve(wanted)
        for loop in self._loops:
            role = self.of(loop)
            loop.scheduler.set_role(role)
            if role is not before.get(loop, WorkerRole.BOTH):
                logger.info("worker %s has the role %s", loop.worker_name, role)
        return before != self._roles

    def _wanted(self, loop: StepLoop) -> WorkerRole:
        match self.mode:
            case Disaggregation.OFF:
                return WorkerRole.BOTH
            case Disaggregation.STATIC:
                return loop.asked_role
            case Disaggregation.AUTO:
                return self._chosen.get(loop, WorkerRole.BOTH)

    def balance(self, now: float) -> bool:
        """Divides the workers by the load once a period under `auto`; returns True if that has
        changed a role. A division is made once it was wanted twice."""
        if self.mode is not Disaggregation.AUTO or now < self._look_at:
            return False
        period_s, self._look_at = PERIOD_S + now - self._look_at, now + PERIOD_S
        pool = [loop for loop in self._loops if not loop.is_draining]
        num_prefill = divide(len(pool), self._use(pool, period_s))
        is_proposed, self._proposed = num_prefill == self._proposed, num_prefill
        num_now = sum(role is WorkerRole.PREFILL for role in self._chosen.values())
        is_of_these = self._chosen.keys() == (set(pool) if num_prefill else set())
        if not is_proposed or (num_prefill == num_now and is_of_these):
            return False
        self._choose(pool, num_prefill)
        return self.settle()

    def _use(self, pool: list[StepLoop], period_s: float) -> Use:
        """Returns the load of the prompts since the last look, with those that wait, and of what
        decodes now."""
        prompt_s = decodes = 0.0
        seen, self._seen = self._seen, {}
        for loop in pool:
            scheduler = loop.scheduler
            num_tokens = self._seen[loop] = scheduler.steps.num_prefill_tokens
            prompt_s += scheduler.cost.recompute_s(num_tokens - seen.get(loop, num_tokens))
            decodes += scheduler.share_in_use
        if pool:
            scheduler = pool[0].scheduler
            prompt_s += scheduler.cost.recompute_s(scheduler.admission.num_prompt_tokens)
        return Use(prompt_s / period_s, decodes)

    def _choose(self, pool: list[StepLoop], num_prefill: int) -> None:
        """Makes those prefill that do, then those that ask for it, then those with least to do."""

        def place(loop: StepLoop) -> tuple[bool, bool, int]:
            is_prefill = self.of(loop) is WorkerRole.PREFILL
            asks = loop.asked_role is WorkerRole.PREFILL
            return not is_prefill, not asks, len(loop.scheduler.running)

        in_order = sorted(pool, key=place)
        self._chosen = {}
        if num_prefill:
            self._chosen = dict.fromkeys(in_order, WorkerRole.DECODE)
            self._chosen |= dict.fromkeys(in_order[:num_prefill], WorkerRole.PREFILL)

    def leave(self, loop: StepLoop) -> None:
        """Forgets a worker that is gone."""
        for known in (self._chosen, self._seen, self._roles):
            known.pop(loop, None)


def resolve(wanted: Mapping[StepLoop, WorkerRole]) -> dict[StepLoop, WorkerRole]:
    """Returns what each worker does if it wants this: a role that none has is that of `both`."""
    missing = {WorkerRole.PREFILL, WorkerRole.DECODE} - set(wanted.values())
    if not missing:
        return dict(wanted)
    if len(missing) == 2 or WorkerRole.BOTH not in wanted.values():
        return dict.fromkeys(wanted, WorkerRole.BOTH)
    (role,) = missing
    return {loop: role if own is WorkerRole.BOTH else own for loop, own in wanted.items()}


def divide(num_workers: int, use: Use) -> int:
    """Returns how many workers should compute prompts alone; 0 lets all do both.

    A pool that cannot do each part with workers of its own loses by a division, as does one whose
    prompts take little of its time.
    """
    if use.prompts < LEAST_USE * num_workers:
        return 0
    num_prefill = math.ceil(use.prompts / MOST_USE)
    num_decode = max(1, math.ceil(use.decodes / MOST_USE))
    num_spare = num_workers - num_prefill - num_decode
    return 0 if num_spare < 0 else num_prefill + num_spare // 2


def _name(one: StepLoop, joining: StepLoop) -> str:
    return "it" if one is joining else f"the worker at {one.worker_name}"
