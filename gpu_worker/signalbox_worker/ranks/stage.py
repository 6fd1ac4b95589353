"""A rank's runner between the stage before, whose hidden states it takes, and the next one.

Each batch makes each stage send one message, states or a failure, so that stages stay in step
whatever fails. The times of the stages so far go with the states: durations, each measured by the
clock of one rank.
"""

import time

from signalbox_contract.step_result import Stages, StageTimings
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.ranks.rank_shard import RankShard
from signalbox_worker.ranks.service import rank_codec
from signalbox_worker.ranks.service.rank_client import NextRank
from signalbox_worker.ranks.service.rank_messages import FailedStates, Failure, HiddenStates
from signalbox_worker.ranks.service.rank_servicer import IncomingStates


class FailedBefore(RuntimeError):
    """The batch has failed in a stage before this one."""


class Stage:
    """Computes batches in order. Call from one thread."""

    def __init__(
        self, runner: RankShard, incoming: IncomingStates | None, next_rank: NextRank | None
    ) -> None:
        """Args:
        incoming: None on the first stage.
        next_rank: None on the last one.
        """
        self.runner = runner
        self._incoming = incoming
        self._next = next_rank
        self.sums = StageTimings()
        """Times of this rank's batches."""

    def execute(self, batch: Batch, *, command: int, arrived_ns: int) -> BatchOutput:
        """Raises what the runner raises, and what a stage before has failed with: MemoryError or
        FailedBefore.

        Args:
            arrived_ns: when the command came, in nanoseconds of the monotonic clock.
        """
        began_ns, came_ns = time.monotonic_ns(), arrived_ns
        collective_ns, before = self.runner.collective_ns, Stages()
        try:
            if self._incoming is not None:
                before, states_ns = self._take(self._incoming, batch, command)
                came_ns = max(came_ns, states_ns)
            output = self.runner.execute(batch)
        except DeviceLost:  # the ranks end, so that no stage waits for these states
            raise
        except Exception as error:
            self._pass_on(FailedStates(command, Failure.of(error)))
            raise
        own = StageTimings(
            queue_ns=max(0, began_ns - came_ns),
            wait_ns=max(0, came_ns - began_ns),
            forward_ns=output.forward_ns,
            collective_ns=self.runner.collective_ns - collective_ns,
        )
        self._finish(output, before, own)
        if output.hidden is not None:
            self._pass_on(HiddenStates(command, output.hidden, output.stages))
        return output

    def _finish(self, output: BatchOutput, before: Stages, own: StageTimings) -> None:
        """Adds the times of this stage, and those of the stages before it."""
        if self._next is not None:
            num_bytes, boundary_ns = self._next.pop_boundary()
            own = own._replace(boundary_bytes=num_bytes, boundary_ns=boundary_ns)
        self.sums = self.sums.plus(own)
        output.stages = (*before, own)
        output.forward_ns = sum(stage.forward_ns for stage in output.stages)

    def _take(self, incoming: IncomingStates, batch: Batch, command: int) -> tuple[Stages, int]:
        """Gives the batch its hidden states; returns the times of the stages before, and when the
        states came."""
        message, came_ns = incoming.take()
        found = rank_codec.decode_states(message, num_tokens=len(batch.token_ids))
        assert found.command == command, f"{found.command} for {command}"
        if isinstance(found, FailedStates):
            error = MemoryError if found.failure.out_of_memory else FailedBefore
            raise error(found.failure.message)
        batch.hidden = found.values
        return found.stages, came_ns

    def _pass_on(self, states: HiddenStates | FailedStates) -> None:
        if self._next is not None:
            self._next.send(states)
