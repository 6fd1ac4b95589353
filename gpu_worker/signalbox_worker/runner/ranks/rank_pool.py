"""The other ranks, as rank 0 sees them: starts them, tells them, hears what they report.

They are one with rank 0 or nothing: when one ends, or fails where the others do not, the rest is
killed and `lost` is set, whatever rank 0 is waiting for meanwhile.
"""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from signalbox_contract.wording import counted
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.runner.ranks.launchers import RankLauncher, StartedRank
from signalbox_worker.runner.ranks.rank_adapters import AdapterOpening
from signalbox_worker.runner.ranks.rank_blocks import BlockCopies
from signalbox_worker.runner.ranks.rank_network import own_name
from signalbox_worker.runner.ranks.rank_starts import check_versions
from signalbox_worker.runner.ranks.service.rank_client import reach
from signalbox_worker.runner.ranks.service.rank_messages import (
    AdapterOpened,
    BlockCopied,
    BlocksOpened,
    Command,
    EndedMoves,
    Failure,
    Hello,
    InStep,
    Link,
    LogLine,
    Meet,
    Met,
    RankAddress,
    Report,
    Sync,
)
from signalbox_worker.runner.ranks.service.rank_servicer import (
    FirstRankServicer,
    JoinedRank,
    Meeting,
    RankLost,
    RankServer,
)

logger = logging.getLogger(__name__)

AGREE_S = 20.0
"""Seconds for all ranks to fail at the same place; a rank that continues alone waits for ever."""
LINK_S = 1.5
"""Seconds for the end of a rank to be known as such, and not as that of its link."""
_END_S = 5.0
_LEAVE_S = 1.0
"""Seconds for ranks that others start to read that they may end."""

R = TypeVar("R", bound=Report)


class _StartedFollower:
    """A rank that was started, its stream once it has joined, and its reports."""

    def __init__(self, rank: int, started: StartedRank) -> None:
        self.rank = rank
        self.started = started
        self.joined: Future[JoinedRank] = Future()
        self.answers: SimpleQueue[tuple[int, Report] | None] = SimpleQueue()
        """Each with the number of the command; None is the last: there will be no more."""


class RankPool:
    """Ranks 1 and up. Commands come from one thread at a time."""

    def __init__(self, num_ranks: int, launcher: RankLauncher) -> None:
        """Starts the ranks, or lets them join.

        Args:
            num_ranks: rank 0 included.
        """
        self.lost: Future[str] = Future()
        """Set to the reason once a rank is lost; its callbacks run on any thread."""
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_commands = 0
        self._num_agreed = 0
        """Commands whose failures have been reported and handled."""
        self.meeting = Meeting()
        self.adapters = AdapterOpening(self._tell, num_ranks - 1)
        self.copies = BlockCopies(num_ranks, self._tell_one)
        self.ended_moves: SimpleQueue[tuple[int, EndedMoves]] = SimpleQueue()
        """Reports of the ranks on their stores."""
        self._launcher, self.tls = launcher, launcher.tls
        if launcher.are_placed:
            logger.info("waiting at %s for %s", launcher.address, counted(num_ranks - 1, "rank"))
        self.servicer = FirstRankServicer(self._take_in, self.meeting, self._on_link_lost, self.tls)
        self._all: list[_StartedFollower] = []
        try:  # a rank that runs removes the folder if this one is killed: ranks come first
            for rank in range(1, num_ranks):
                self._all.append(_StartedFollower(rank, launcher.start(rank)))
            self._server = RankServer(
                self.servicer,
                launcher.address,
                num_streams=3 * num_ranks,  # a rank's own, what it passes, and a call for a key
                tls=self.tls,
            )
        except BaseException:
            for follower in self._all:
                follower.started.end(within_s=0.0)
            launcher.close()
            raise
        for follower in self._all:
            name = f"end of rank {follower.rank}"
            threading.Thread(target=self._watch, args=(follower,), name=name, daemon=True).start()

    @property
    def _joined(self) -> list[JoinedRank]:
        """The ranks that have joined."""
        return [one.joined.result() for one in self._all if one.joined.done()]

    @property
    def addresses(self) -> tuple[RankAddress, ...]:
        """Addresses of rank 0, and of the ranks that have joined."""
        own = RankAddress(self._server.address, own_name(self.tls))
        return (own, *(one.address for one in self._joined))

    @property
    def are_placed(self) -> bool:
        """True if others have started the ranks."""
        return self._launcher.are_placed

    @property
    def hellos(self) -> list[Hello]:
        """First reports of the ranks that have joined."""
        return [one.hello for one in self._joined]

    def wait_until_joined(self) -> None:
        """Raises DeviceLost if a rank does not join, ValueError if one is of another version."""
        join_s = self._launcher.join_s
        ends_at = time.monotonic() + join_s
        for follower in self._all:
            try:
                answer = follower.answers.get(timeout=max(0.0, ends_at - time.monotonic()))
            except Empty:
                missing = [str(one.rank) for one in self._all if not one.joined.done()]
                self.lose(
                    f"ranks {', '.join(missing)} have not joined at {self._server.address} within"
                    f" {join_s:g} s"
                )
                answer = None
            if answer is None:
                self._check()
        check_versions(self.hellos)

    def meet(self) -> None:
        """Has each rank exchange a message with every other one.

        Raises ConnectionError that names all pairs which cannot; if rank 0 is in one of them, those
        of rank 0 alone, because a rank that it does not reach may never answer.
        """
        command = Meet(self.addresses)
        self.send(command)
        found = {0: reach(command, rank=0, tls=self.tls).faults}
        if not found[0]:
            found |= {rank: one.faults for rank, one in enumerate(self.answers(Met), start=1)}
        faults = [f"rank {rank}: cannot reach {fault}" for rank in found for fault in found[rank]]
        if faults:
            raise ConnectionError(f"{'; '.join(faults)}; let such ports through")

    def measure(self) -> list[tuple[Link, ...]]:
        """Returns the links of each rank, by rank. One pair at a time has its link for itself.

        Raises ConnectionError.
        """
        addresses, found = self.addresses, []
        for rank in range(len(addresses)):
            command = Meet(addresses, measuring=rank)
            self.send(command)
            met = [reach(command, rank=0, tls=self.tls), *self.answers(Met)][rank]
            if met.faults:
                raise ConnectionError(f"rank {rank}: cannot reach {'; '.join(met.faults)}")
            found.append(met.links)
        return found

    def send(self, command: Command) -> None:
        """Sends a command to all. Raises DeviceLost."""
        self.send_each([command] * len(self._all))

    def send_each(self, commands: Sequence[Command]) -> None:
        """Sends each rank its own. Raises DeviceLost."""
        self.num_commands += 1
        for follower, command in zip(self._all, commands, strict=True):
            follower.joined.result().send(command)
        self._check()

    def _tell(self, command: Command) -> None:
        """Sends all a command that is not counted; safe from any thread."""
        for rank in range(1, len(self._all) + 1):
            self._tell_one(rank, command)

    def _tell_one(self, rank: int, command: Command) -> None:
        if (joined := self._all[rank - 1].joined).done():
            joined.result().send(command)

    def answers(self, kind: type[R], *, within_s: float | None = None) -> list[R]:
        """Waits for one answer of each; raises MemoryError or RuntimeError if one failed."""
        found = [self._answer(follower, within_s) for follower in self._all]
        self._num_agreed = self.num_commands
        for follower, answer in zip(self._all, found, strict=True):
            if isinstance(answer, Failure):
                error = MemoryError if answer.out_of_memory else RuntimeError
                raise error(f"rank {follower.rank}: {answer.message}")
        assert all(isinstance(answer, kind) for answer in found), f"{found} for {kind}"
        return found  # type: ignore[return-value]  # as asserted

    def agree_on_failure(self, num_collectives: int, *, ranks_of_stage: int) -> None:
        """After a command that failed on rank 0: returns if the ranks of each stage are at one
        place.

        Else some wait in a collective that the others never join. Raises DeviceLost.

        Args:
            num_collectives: that rank 0 has joined.
            ranks_of_stage: ranks that join the same.
        """
        self.send(Sync())
        answers = self.answers(InStep, within_s=AGREE_S)
        places = [num_collectives, *(place.num_collectives for place in answers)]
        stages = [
            set(places[i : i + ranks_of_stage]) for i in range(0, len(places), ranks_of_stage)
        ]
        if any(len(stage) > 1 for stage in stages):
            self.lose("a command failed on some ranks and not on others")
        self._check()

    def expect_failure(self, command: int) -> None:
        """Says that rank 0 has seen a command fail, so that others may report it."""
        self._num_agreed = max(self._num_agreed, command)

    def close(self, failure: str | None = None) -> None:
        """Ends the ranks; with status 0 if nothing has failed."""
        with self._lock:
            self._is_closed = True
            self._call_off()
            if failure is not None and self.meeting.lost is None:
                self.meeting.call_off(failure)
        for follower in self._all:
            if follower.joined.done():
                follower.joined.result().end()
            else:
                follower.started.kill()
        for follower in self._all:
            follower.started.end(within_s=_END_S)
        self._server.close(grace_s=_LEAVE_S)
        self._launcher.close()

    def _take_in(self, joined: JoinedRank) -> str | None:
        """Takes the stream of a rank; returns why it may not join, if it may not."""
        rank = joined.hello.rank
        with self._lock:
            follower = next((one for one in self._all if one.rank == rank), None)
            if follower is None or follower.joined.done():
                return f"this worker has a rank {rank}, or needs none"
            follower.joined.set_result(joined)
        follower.answers.put((0, joined.hello))
        name = f"rank {rank}"
        threading.Thread(target=self._listen, args=(follower,), name=name, daemon=True).start()
        return None

    def _answer(self, follower: _StartedFollower, within_s: float | None) -> Report:
        """Returns the report on the last command; reports on earlier ones are dropped."""
        while True:
            try:
                answer = follower.answers.get(timeout=within_s)
            except Empty:
                self.lose(f"rank {follower.rank} does not answer")
                answer = None
            if answer is None:
                self._check()
                raise DeviceLost("the ranks have been ended")
            command, report = answer
            if command == self.num_commands:
                return report

    def _listen(self, follower: _StartedFollower) -> None:
        for command, report in follower.joined.result().reports():
            if isinstance(report, LogLine):
                rank_logger = logging.getLogger(report.logger)
                rank_logger.log(report.level, "rank %d: %s", follower.rank, report.message)
            elif isinstance(report, EndedMoves):
                self.ended_moves.put((follower.rank, report))
            elif isinstance(report, BlocksOpened | BlockCopied):
                self.copies.hear(follower.rank, report)
            elif isinstance(report, AdapterOpened):
                self.adapters.hear(follower.rank, report)
            else:
                self._hear(follower, command, report)
        self._end(follower)

    def _watch(self, follower: _StartedFollower) -> None:
        follower.started.wait()
        self._end(follower)

    def _end(self, follower: _StartedFollower) -> None:
        self.lose(f"rank {follower.rank} {follower.started.how_it_ended()}")
        follower.answers.put(None)

    def _hear(self, follower: _StartedFollower, command: int, report: Report) -> None:
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
            self.lose(reason)

    def _on_link_lost(self, rank: int) -> None:
        timer = threading.Timer(LINK_S, self.lose, (f"the link from rank {rank} is lost",))
        timer.daemon = True
        timer.start()

    def lose(self, reason: str) -> None:
        """Ends the ranks, unless they have ended."""
        with self._lock:
            if self._is_closed or self.meeting.lost is not None:
                return
            self.meeting.call_off(reason)
        self._call_off()
        for follower in self._all:
            if follower.joined.done():
                follower.joined.result().end()
            follower.started.kill()
            follower.answers.put(None)
        self.servicer.incoming.put(None)
        self._launcher.close()  # the process may end within the next call
        self.lost.set_result(reason)

    def loss_behind(self, error: RankLost) -> DeviceLost:
        """Returns which rank was lost, where rank 0 has met what follows from it.

        A broken link is often seen before the end of the process behind it.
        """
        reason = self.meeting.why_lost(within_s=_END_S)
        return error if reason is None else DeviceLost(reason)

    def _call_off(self) -> None:
        """Ends the wait for what ranks do beside their commands."""
        self.adapters.call_off()
        self.copies.call_off()

    def _check(self) -> None:
        if self.meeting.lost is not None:
            raise DeviceLost(self.meeting.lost)
