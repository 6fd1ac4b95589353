"""The other ranks, as rank 0 sees them: starts them, tells them, hears what they report.

They are one with rank 0 or nothing: when one ends, or fails where the others do not, the rest is
killed and `on_lost` is told, whatever rank 0 is waiting for meanwhile.
"""

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar

from gpu_worker.device.device_errors import DeviceLost
from gpu_worker.ranks import rank_codec
from gpu_worker.ranks.rank_channel import Channel
from gpu_worker.ranks.rank_messages import Ask, Command, Failure, InStep, LogLine, Report, Start

logger = logging.getLogger(__name__)

AGREE_S = 20.0
"""Seconds for all ranks to fail at the same place; a rank that continues alone waits for ever."""
_END_S = 5.0

R = TypeVar("R", bound=Report)


class _Follower:
    """The process of a rank, and its reports."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gpu_worker.ranks.follower_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.channel = Channel(ours.detach())
        self.answers: SimpleQueue[tuple[int, Report] | None] = SimpleQueue()
        """Each with the number of the command; None is the last: there will be no more."""

    def end(self, *, within_s: float) -> None:
        """Waits until the process notices its closed socket; kills it if that takes long."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def how_it_ended(self) -> str:
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "has closed its socket"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"


class Followers:
    """Ranks 1 and up. Commands come from one thread."""

    def __init__(self, starts: Sequence[Start], on_lost: Callable[[str], None]) -> None:
        """Starts a process for each; they load meanwhile.

        Args:
            on_lost: called once, on any thread, with what has happened.
        """
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._lost: str | None = None
        self._is_closed = False
        self._num_commands = 0
        self._num_agreed = 0
        """Commands whose failures have been reported and handled."""
        self._all = [_Follower(start.parallel.rank) for start in starts]
        for follower, start in zip(self._all, starts, strict=True):
            follower.channel.send(rank_codec.encode_command(start))
            name = f"rank {follower.rank}"
            threading.Thread(target=self._listen, args=(follower,), name=name, daemon=True).start()
        self._num_commands = 1

    @property
    def pids(self) -> list[int]:
        return [follower.process.pid for follower in self._all]

    def send(self, command: Command) -> None:
        """Sends a command to all. Raises DeviceLost."""
        data = rank_codec.encode_command(command)
        self._num_commands += 1
        for follower in self._all:
            try:
                follower.channel.send(data)
            except OSError:
                self._lose(f"rank {follower.rank} {follower.how_it_ended()}")
        self._check()

    def answers(self, kind: type[R], *, within_s: float | None = None) -> list[R]:
        """Waits for one answer of each; raises MemoryError or RuntimeError if one failed."""
        found = [self._answer(follower, within_s) for follower in self._all]
        self._num_agreed = self._num_commands
        for follower, answer in zip(self._all, found, strict=True):
            if isinstance(answer, Failure):
                error = MemoryError if answer.out_of_memory else RuntimeError
                raise error(f"rank {follower.rank}: {answer.message}")
        assert all(isinstance(answer, kind) for answer in found), f"{found} for {kind}"
        return found  # type: ignore[return-value]  # as asserted

    def agree_on_failure(self, num_collectives: int) -> None:
        """After a command that failed on rank 0: returns if all are at one place.

        Else some wait in a collective that the others never join. Raises DeviceLost.
        """
        self.send(Ask.SYNC)
        places = {place.num_collectives for place in self.answers(InStep, within_s=AGREE_S)}
        if places != {num_collectives}:
            self._lose("a command failed on some ranks and not on others")
        self._check()

    def close(self) -> None:
        """Ends the processes."""
        with self._lock:
            self._is_closed = True
        for follower in self._all:
            follower.channel.close()
        for follower in self._all:
            follower.end(within_s=_END_S)

    def _answer(self, follower: _Follower, within_s: float | None) -> Report:
        """Returns the report on the last command; reports on earlier ones are dropped."""
        while True:
            try:
                answer = follower.answers.get(timeout=within_s)
            except Empty:
                self._lose(f"rank {follower.rank} does not come back from what failed")
                answer = None
            if answer is None:
                self._check()
                raise DeviceLost("the ranks have been ended")
            command, report = answer
            if command == self._num_commands:
                return report

    def _listen(self, follower: _Follower) -> None:
        while (data := follower.channel.receive()) is not None:
            command, report = rank_codec.decode_report(data)
            if isinstance(report, LogLine):
                rank_logger = logging.getLogger(report.logger)
                rank_logger.log(report.level, "rank %d: %s", follower.rank, report.message)
            else:
                self._hear(follower, command, report)
        self._lose(f"rank {follower.rank} {follower.how_it_ended()}")
        follower.answers.put(None)

    def _hear(self, follower: _Follower, command: int, report: Report) -> None:
        """Queues a report; ends the group later if rank 0 does not fail at the same command."""
        follower.answers.put((command, report))
        if not isinstance(report, Failure):
            return
        reason = f"rank {follower.rank} failed alone: {report.message}"
        timer = threading.Timer(AGREE_S, self._lose_unless_agreed, (command, reason))
        timer.daemon = True
        timer.start()

    def _lose_unless_agreed(self, command: int, reason: str) -> None:
        if self._num_agreed < command:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        with self._lock:
            if self._is_closed or self._lost is not None:
                return
            self._lost = reason
        for follower in self._all:
            with suppress(OSError):
                follower.process.kill()
        self._on_lost(reason)

    def _check(self) -> None:
        if self._lost is not None:
            raise DeviceLost(self._lost)
