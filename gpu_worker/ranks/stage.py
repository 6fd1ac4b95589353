"""A rank's runner between the stage before, whose hidden states it takes, and the next one.

Each batch makes each stage send one message, states or a failure, so that stages stay in step
whatever fails.
"""

import time
from dataclasses import dataclass

from gpu_worker.batch.batch import Batch, BatchOutput
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.device.device_errors import DeviceLost
from gpu_worker.ranks import rank_codec
from gpu_worker.ranks.rank_client import NextRank
from gpu_worker.ranks.rank_messages import Failure, HiddenStates
from gpu_worker.ranks.rank_servicer import IncomingStates


@dataclass(slots=True)
class StageTimes:
    """Sums over the batches that a stage has computed."""

    wait_ns: int = 0
    """Nanoseconds for which a batch waited for the hidden states of the stage before."""
    forward_ns: int = 0


class FailedBefore(RuntimeError):
    """The batch has failed in a stage before this one."""


class Stage:
    """Computes batches in order. Call from one thread."""

    def __init__(
        self, runner: Runner, incoming: IncomingStates | None, next_rank: NextRank | None
    ) -> None:
        """Args:
        incoming: None on the first stage.
        next_rank: None on the last one.
        """
        self.runner = runner
        self.times = StageTimes()
        self._incoming = incoming
        self._next = next_rank

    def execute(self, batch: Batch, *, command: int) -> BatchOutput:
        """Raises what the runner raises, and what a stage before has failed with: MemoryError or
        FailedBefore."""
        forward_ns = 0
        try:
            if self._incoming is not None:
                forward_ns = self._take(self._incoming, batch, command)
            output = self.runner.execute(batch)
        except DeviceLost:  # the ranks end, so that no stage waits for these states
            raise
        except Exception as error:
            self._pass_on(HiddenStates(command, None, Failure.of(error), 0))
            raise
        self.times.forward_ns += output.forward_ns
        output.forward_ns += forward_ns
        self._pass_on(HiddenStates(command, output.hidden, None, output.forward_ns))
        return output

    def _take(self, incoming: IncomingStates, batch: Batch, command: int) -> int:
        """Gives the batch its hidden states; returns the time that they took."""
        begun_ns = time.monotonic_ns()
        message = incoming.take()
        self.times.wait_ns += time.monotonic_ns() - begun_ns
        found = rank_codec.decode_states(message, num_tokens=len(batch.token_ids))
        assert found.command == command, f"{found.command} for {command}"
        if found.failure is not None:
            error = MemoryError if found.failure.out_of_memory else FailedBefore
            raise error(found.failure.message)
        batch.hidden = found.values
        return found.forward_ns

    def _pass_on(self, states: HiddenStates) -> None:
        if self._next is not None:
            self._next.send(states)
