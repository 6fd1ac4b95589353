"""A rank's runner between the stage before, whose hidden states it takes, and the next one.

Each batch makes each stage send one message, states or a failure, so that stages stay in step
whatever fails. The times of the stages so far go with the states: durations, each measured by the
clock of one rank.
"""

import time

from signalbox_contract.step_result import Stages, StageTimings
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.ranks.service import rank_codec
from signalbox_worker.runner.ranks.service.rank_client import NextRank, NoNextRank
from signalbox_worker.runner.ranks.service.rank_messages import FailedStates, Failure, PassedStates
from signalbox_worker.runner.ranks.service.rank_servicer import IncomingStates


class FailedBefore(RuntimeError):
    """The batch has failed in a stage before this one."""


class StatesBefore:
    """Takes the hidden states that the stage before has passed."""

    def __init__(self, incoming: IncomingStates) -> None:
        self._incoming = incoming

    def take(self, batch: Batch, command: int) -> tuple[Stages, int]:
        """Gives the batch its hidden states; returns the times of the stages before, and when the
        states came."""
        message, came_ns = self._incoming.take()
        found = rank_codec.decode_states(message, num_tokens=len(batch.token_ids))
        assert found.command == command, f"{found.command} for {command}"
        if isinstance(found, FailedStates):
            error = MemoryError if found.failure.out_of_memory else FailedBefore
            raise error(found.failure.message)
        batch.hidden = found.values
        return found.stages, came_ns


class NoStatesBefore:
    """Stands before the first stage."""

    def take(self, batch: Batch, command: int) -> tuple[Stages, int]:
        return (), 0


class Stage:
    """Computes batches in order. Call from one thread."""

    def __init__(
        self,
        runner: LocalRunner,
        before: StatesBefore | NoStatesBefore,
        next_rank: NextRank | NoNextRank,
    ) -> None:
        self.runner, self._before, self._next = runner, before, next_rank
        self.sums = StageTimings()
        """Times of this rank's batches."""

    def execute(self, batch: Batch, *, command: int, arrived_ns: int) -> BatchOutput:
        """Raises what the runner raises, and what a stage before has failed with: MemoryError or
        FailedBefore.

        Args:
            arrived_ns: when the command came, in nanoseconds of the monotonic clock.
        """
        began_ns, collective_ns = time.monotonic_ns(), self.runner.executor.collective_ns
        try:
            before, states_ns = self._before.take(batch, command)
            output = self._compute(batch)
        except DeviceLost:  # the ranks end, so that no stage waits for these states
            raise
        except Exception as error:
            self._next.send(FailedStates(command, Failure.of(error)))
            raise
        came_ns = max(arrived_ns, states_ns)
        num_bytes, boundary_ns = self._next.pop_boundary()
        own = StageTimings(
            queue_ns=max(0, began_ns - came_ns),
            wait_ns=max(0, came_ns - began_ns),
            forward_ns=output.forward_ns,
            collective_ns=self.runner.executor.collective_ns - collective_ns,
            boundary_bytes=num_bytes,
            boundary_ns=boundary_ns,
        )
        self.sums = self.sums.plus(own)
        output.stages = (*before, own)
        output.forward_ns = sum(stage.forward_ns for stage in output.stages)
        if output.hidden is not None:
            self._next.send(PassedStates(command, output.hidden, output.stages))
        return output

    def _compute(self, batch: Batch) -> BatchOutput:
        """Lets no MemoryError ask for parts of a batch once stages have changed states."""
        try:
            return self.runner.execute(batch)
        except MemoryError as error:
            if batch.states is None or isinstance(self._before, NoStatesBefore):
                raise
            raise RuntimeError(f"no memory, once stages have changed states: {error}") from error
