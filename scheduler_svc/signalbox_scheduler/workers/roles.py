"""Gives workers roles: to compute prompts, or to decode what the former migrate (DistServe, OSDI
2024).

A worker asks for a role when it joins. What each does follows from what the present workers have
asked for: the workers of `both` take a role that no worker has, and if there are none all do both.
So the loss or drain of a worker leaves no role without one, and no request waits for a role.
"""

import logging
from collections.abc import Mapping

from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import Disaggregation, PeerIdentity
from signalbox_scheduler.transfers.peers import peer_identity
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.worker_pool import StepLoops

logger = logging.getLogger(__name__)


class Roles:
    """The roles of the workers of a cluster."""

    def __init__(self, mode: Disaggregation, loops: StepLoops) -> None:
        self.mode = mode
        self._loops = loops
        self._roles: dict[StepLoop, WorkerRole] = {}

    def of(self, loop: StepLoop) -> WorkerRole:
        """Returns what a worker does now."""
        return self._roles.get(loop, WorkerRole.BOTH)

    def refusal(self, loop: StepLoop, *, pools: bool = False) -> str:
        """Returns why the roles in this pool keep a worker from joining it; empty if it may join.

        Args:
            pools: whether the model makes vectors of prompts, and no tokens.
        """
        pool = [loop, *(other for other in self._loops if not other.is_draining)]
        if all(self._asked(one) is WorkerRole.BOTH for one in pool):
            return ""
        if pools:
            return "a model that pools has workers that decode nothing; leave --role out"
        for one in pool:
            if not _identity(one).kv_format:
                return (
                    f"{_name(one, loop)} cannot migrate requests, as a pool with roles does;"
                    " give it more swap space (--swap-space), and the scheduler --prefix-caching"
                    " and --cpu-prefix-cache, or leave --role out"
                )
        for other in pool[1:]:
            if not _identity(loop).has_format_of(_identity(other)):
                return (
                    f"its KV blocks are not those of the worker at {other.worker_name}; in a pool"
                    " with roles all workers have the same weights, type of K and V, block size,"
                    " tensor-parallel size and pipeline-parallel size"
                )
        return ""

    def settle(self) -> None:
        """Gives each worker its role in the pool as it is now."""
        asked = {loop: self._asked(loop) for loop in self._loops if not loop.is_draining}
        before, self._roles = self._roles, resolve(asked)
        for loop in self._loops:
            role = self.of(loop)
            loop.scheduler.set_role(role)
            if role is not before.get(loop, WorkerRole.BOTH):
                loop.scheduler.state.audits.drop()
                logger.info("worker %s has the role %s", loop.worker_name, role)

    def _asked(self, loop: StepLoop) -> WorkerRole:
        """Returns the role that a worker asks for, as far as that counts."""
        return WorkerRole.BOTH if self.mode is Disaggregation.OFF else loop.asked_role


def resolve(asked: Mapping[StepLoop, WorkerRole]) -> dict[StepLoop, WorkerRole]:
    """Returns what each worker does if it asks for this: `both` takes a role that none has."""
    missing = {WorkerRole.PREFILL, WorkerRole.DECODE} - set(asked.values())
    if not missing:
        return dict(asked)
    if len(missing) == 2 or WorkerRole.BOTH not in asked.values():
        return dict.fromkeys(asked, WorkerRole.BOTH)
    (role,) = missing
    return {loop: role if own is WorkerRole.BOTH else own for loop, own in asked.items()}


def _identity(loop: StepLoop) -> PeerIdentity:
    return peer_identity(loop.scheduler.config)


def _name(one: StepLoop, joining: StepLoop) -> str:
    return "it" if one is joining else f"the worker at {one.worker_name}"
