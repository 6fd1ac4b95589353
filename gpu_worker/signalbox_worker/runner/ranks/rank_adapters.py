"""LoRA adapters at run time: all ranks of a worker load one, or none does.

Each rank first reads its shard beside the batches, which is where an adapter can fail; rank 0 waits
for the others there. The command that gives the adapter its slot then has its place among the
batches, so that all ranks give it the same slot, and a rank that fails at it ends.
"""

import itertools
import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.config import ModelError
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.runner.ranks.service.rank_messages import (
    AdapterOpened,
    Command,
    ForgetAdapter,
    OpenAdapter,
)

logger = logging.getLogger(__name__)

Open = Callable[[str, str], OpenedAdapter]
"""`open_adapter` of a rank's shard."""


@dataclass(frozen=True, eq=False, weakref_slot=True, slots=True)
class OpenedOnRanks:
    """An adapter that every rank has read; the others forget it with this object."""

    number: int
    own: OpenedAdapter
    """Rank 0's shard."""


class AdapterOpening:
    """Has the other ranks read adapters; rank 0's side. Safe from any thread."""

    def __init__(self, tell: Callable[[Command], None], num_others: int) -> None:
        """Args: tell: sends all other ranks a command beside those that are counted."""
        self._tell, self._num_others = tell, num_others
        self._numbers = itertools.count(1)
        self._asked: dict[int, SimpleQueue[tuple[int, AdapterOpened] | None]] = {}
        self._is_off = False

    def open(self, name: str, folder: str, open_own: Open) -> OpenedAdapter:
        """Reads an adapter on all ranks at once. Raises ModelError if one cannot, or DeviceLost."""
        number = next(self._numbers)
        answers = self._asked[number] = SimpleQueue()
        try:
            self._tell(OpenAdapter(number, name, folder))
            own = open_own(name, folder)
            opened = OpenedOnRanks(number, own)
            for _ in range(self._num_others):
                self._check(answers, own)
        except BaseException:
            self._tell(ForgetAdapter(number))
            raise
        finally:
            del self._asked[number]
        weakref.finalize(opened, self._tell, ForgetAdapter(number)).atexit = False
        return OpenedAdapter(own.info, opened)

    def _check(
        self, answers: "SimpleQueue[tuple[int, AdapterOpened] | None]", own: OpenedAdapter
    ) -> None:
        answer = None if self._is_off else answers.get()
        if answer is None:
            raise DeviceLost("the ranks have ended")
        rank, theirs = answer
        if theirs.error:
            raise ModelError(f"rank {rank}: {theirs.error}")
        if theirs.sha256 != own.info.sha256:
            raise ModelError(
                f"rank {rank} has other files of {own.info.name} ({theirs.sha256[:12]}) than rank 0"
                f" ({own.info.sha256[:12]}); copy the same to the hosts of all ranks"
            )

    def hear(self, rank: int, report: AdapterOpened) -> None:
        """Takes the answer of a rank; one that nothing waits for any more is dropped."""
        if (answers := self._asked.get(report.number)) is not None:
            answers.put((rank, report))

    def call_off(self) -> None:
        """Makes what waits for ranks raise DeviceLost."""
        self._is_off = True
        for answers in list(self._asked.values()):
            answers.put(None)


class RankAdapters:
    """Adapters that a rank has read and given no slot yet; the side of a rank but the first."""

    def __init__(self, open_shard: Open, report: Callable[[AdapterOpened], None]) -> None:
        self._open_shard, self._report = open_shard, report
        self._reader = ThreadPoolExecutor(1, "reads adapters")
        self._opened: dict[int, Future[OpenedAdapter]] = {}

    def open(self, command: OpenAdapter) -> None:
        """Begins to read an adapter, and reports when that is done."""
        reading = self._reader.submit(self._open_shard, command.name, command.folder)
        self._opened[command.number] = reading
        reading.add_done_callback(lambda done: self._report(_report_of(command.number, done)))

    def take(self, number: int) -> OpenedAdapter:
        return self._opened[number].result()

    def forget(self, number: int) -> None:
        """Frees an adapter; one that is being read is freed afterwards."""
        self._opened.pop(number).cancel()

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)


def _report_of(number: int, reading: "Future[OpenedAdapter]") -> AdapterOpened:
    if reading.cancelled():
        return AdapterOpened(number, "", "rank 0 has given it up")
    error = reading.exception()
    if error is None:
        return AdapterOpened(number, reading.result().info.sha256, "")
    if not isinstance(error, ModelError):
        logger.error("an adapter could not be read", exc_info=error)
    return AdapterOpened(number, "", str(error).partition("\n")[0] or type(error).__name__)
