"""The other ranks, as rank 0 sees them: starts them, tells them, hears what they report.

They are one with rank 0 or nothing: when one ends, or fails where the others do not, the rest is
killed and `on_lost` is told, whatever rank 0 is waiting for meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from signalbox_contract.wording import counted
from signalbox_rpc.lifetime.private_folder import PrivateFolder
from signalbox_rpc.transport.tls import CLEAR
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.ranks.launchers import AwaitedRank, Launcher, LocalRank, StartedRank
from signalbox_worker.ranks.rank_adapters import AdapterOpening
from signalbox_worker.ranks.rank_blocks import BlockCopies
from signalbox_worker.ranks.rank_network import JOIN_S, RankNetwork, own_name
from signalbox_worker.ranks.service.meeting import Meeting
from signalbox_worker.ranks.service.rank_messages import (
    AdapterOpened,
    BlockCopied,
    BlocksOpened,
    Command,
    EndedMoves,
    Failure,
    Hello,
    InStep,
    LogLine,
    RankAddress,
    Report,
    Sync,
)
from signalbox_worker.ranks.service.rank_servicer import FirstRankServicer, JoinedRank, RankServer
from signalbox_worker.ranks.versions import versions

logger = logging.getLogger(__name__)

AGREE_S = 20.0
"""Seconds for all ranks to fail at the same place; a rank that continues alone waits for ever."""
LINK_S = 1.5
"""Seconds for the end of a rank to be known as such, and not as that of its link."""
_END_S = 5.0
_LEAVE_S = 1.0
"""Seconds for ranks that others start to read that they may end."""

R = TypeVar("R", bound=Report)


class _Follower:
    """A rank that was started, its stream once it has joined, and its reports."""

    def __init__(self, rank: int, started: StartedRank) -> None:
        self.rank = rank
        self.started = started
        self.joined: JoinedRank | None = None
        self.answers: SimpleQueue[tuple[int, Report] | None] = SimpleQueue()
        """Each with the number of the command; None is the last: there will be no more."""


class RankPool:
    """Ranks 1 and up. Commands come from one thread at a time."""

    def __init__(
        self,
        num_ranks: int,
        on_lost: Callable[[str], None],
        *,
        launch: Launcher = LocalRank,
        network: RankNetwork | None = None,
        join_s: float | None = None,
    ) -> None:
        """Starts the ranks, or lets them join.

        Args:
            num_ranks: rank 0 included.
            on_lost: called once, on any thread, with what has happened.
            network: None starts processes of this machine by `launch`; else others start the ranks.
            join_s: seconds for them to join; None suits what starts them.
        """
        self._on_lost = on_lost
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
        self._folder: PrivateFolder | None = None
        self.tls = CLEAR
        if network is None:
            self._folder = PrivateFolder("ranks")
            address = f"unix:{self._folder.path}/0"
        else:
            address, self.tls, launch = network.address, network.tls, AwaitedRank
            logger.info("waiting at %s for %s", address, counted(num_ranks - 1, "rank"))
        self._join_s = join_s or (JOIN_S if network is None else 5 * JOIN_S)
        self.servicer = FirstRankServicer(self._take_in, self.meeting, self._on_link_lost, self.tls)
        # A rank has its stream, what it passes, and a call for a key.
        num_streams = 3 * num_ranks
        self._all: list[_Follower] = []
        try:  # a rank that runs removes the folder if this one is killed: ranks come first
            for rank in range(1, num_ranks):
                self._all.append(_Follower(rank, launch(rank, address)))
            self._server = RankServer(self.servicer, address, num_streams=num_streams, tls=self.tls)
        except BaseException:
            for follower in self._all:
                follower.started.end(within_s=0.0)
            self._remove_folder()
            raise
        for follower in self._all:
            name = f"end of rank {follower.rank}"
            threading.Thread(target=self._watch, args=(follower,), name=name, daemon=True).start()

    @property
    def addresses(self) -> tuple[RankAddress, ...]:
        """Addresses of rank 0, and of the ranks that have joined."""
        joined = [one.joined.address for one in self._all if one.joined is not None]
        return (RankAddress(self._server.address, own_name(self.tls)), *joined)

    @property
    def are_placed(self) -> bool:
        """True if others have started the ranks."""
        return self._folder is None

    @property
    def pids(self) -> list[int]:
        return [hello.pid for hello in self.hellos]

    @property
    def hellos(self) -> list[Hello]:
        """First reports of the ranks that have joined."""
        return [one.joined.hello for one in self._all if one.joined is not None]

    def wait_until_joined(self) -> None:
        """Raises DeviceLost if a rank does not join, ValueError if one is of another version."""
        ends_at = time.monotonic() + self._join_s
        for follower in self._all:
            try:
                answer = follower.answers.get(timeout=max(0.0, ends_at - time.monotonic()))
            except Empty:
                missing = [str(one.rank) for one in self._all if one.joined is None]
                self.lose(
                    f"ranks {', '.join(missing)} have not joined at {self._server.address} within"
                    f" {self._join_s:g} s"
                )
                answer = None
            if answer is None:
                self._check()
        for hello in self.hellos:
            if hello.versions != versions():
                raise ValueError(
                    f"rank {hello.rank} has {hello.versions}, and rank 0 {versions()}; install the"
                    " same everywhere"
                )

    def send(self, command: Command) -> None:
        """Sends a command to all. Raises DeviceLost."""
        self.send_each([command] * len(self._all))

    def send_each(self, commands: Sequence[Command]) -> None:
        """Sends each rank its own. Raises DeviceLost."""
        self.num_commands += 1
        for follower, command in zip(self._all, commands, strict=True):
            assert follower.joined is not None, "all have joined"
            follower.joined.send(command)
        self._check()

    def _tell(self, command: Command) -> None:
        """Sends all a command that is not counted; safe from any thread."""
        for rank in range(1, len(self._all) + 1):
            self._tell_one(rank, command)

    def _tell_one(self, rank: int, command: Command) -> None:
        if (joined := self._all[rank - 1].joined) is not None:
            joined.send(command)

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
            if follower.joined is not None:
                follower.joined.end()
            else:
                follower.started.kill()
        for follower in self._all:
            follower.started.end(within_s=_END_S)
        self._server.close(grace_s=_LEAVE_S)
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def _take_in(self, joined: JoinedRank) -> str | None:
        """Takes the stream of a rank; returns why it may not join, if it may not."""
        rank = joined.hello.rank
        with self._lock:
            follower = next((one for one in self._all if one.rank == rank), None)
            if follower is None or follower.joined is not None:
                return f"this worker has a rank {rank}, or needs none"
            follower.joined = joined
        follower.answers.put((0, joined.hello))
        name = f"rank {rank}"
        threading.Thread(target=self._listen, args=(follower,), name=name, daemon=True).start()
        return None

    def _answer(self, follower: _Follower, within_s: float | None) -> Report:
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

    def _listen(self, follower: _Follower) -> None:
        assert follower.joined is not None
        for command, report in follower.joined.reports():
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

    def _watch(self, follower: _Follower) -> None:
        follower.started.wait()
        self._end(follower)

    def _end(self, follower: _Follower) -> None:
        self.lose(f"rank {follower.rank} {follower.started.how_it_ended()}")
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
            if follower.joined is not None:
                follower.joined.end()
            follower.started.kill()
            follower.answers.put(None)
        self.servicer.incoming.put(None)
        self._remove_folder()  # the process may end within the next call
        self._on_lost(reason)

    def _call_off(self) -> None:
        """Ends the wait for what ranks do beside their commands."""
        self.adapters.call_off()
        self.copies.call_off()

    def _check(self) -> None:
        if self.meeting.lost is not None:
            raise DeviceLost(self.meeting.lost)
