"""A rank but the first, as a process: obeys rank 0, and ends when rank 0 does.

`python -m gpu_worker.ranks.follower_process FD`, where FD is its end of a socket pair.
A thread reads it, so that the process ends with rank 0 even while it computes, or waits in a
collective that no other rank joins any more. Signals that a terminal or a service manager sends to
all processes are rank 0's to act on.
"""

import logging
import os
import signal
import sys
import threading
from queue import SimpleQueue

from contract.step import Step
from gpu_worker.batch.batch import Batch
from gpu_worker.device.device_errors import is_device_lost
from gpu_worker.ranks import rank_codec
from gpu_worker.ranks.rank_channel import Channel
from gpu_worker.ranks.rank_messages import (
    Ask,
    CacheReady,
    Command,
    Done,
    Failure,
    InitCacheEngine,
    InStep,
    LogLine,
    Report,
    Start,
)

logger = logging.getLogger("gpu_worker.ranks.follower_process")


class Follower:
    """Executes one command after the other."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._num_commands = 0
        threading.Thread(target=self._read, name="rank 0", daemon=True).start()

    def _read(self) -> None:
        while (data := self._channel.receive()) is not None:
            self._commands.put(rank_codec.decode_command(data))
        os._exit(0)

    def _next(self) -> Command:
        command = self._commands.get()
        self._num_commands += 1
        return command

    def report(self, report: Report) -> None:
        try:
            data = rank_codec.encode_report(report, command=self._num_commands)
            self._channel.send(data)
        except OSError:
            os._exit(0)

    def serve(self) -> None:
        """Executes commands for ever; raises the errors after which the rank cannot go on."""
        start = self._next()
        assert isinstance(start, Start)
        try:
            self._load(start)
        except Exception as error:
            self._fail(error)
            threading.Event().wait()  # rank 0 fails at the same, most often, and says it better
        while True:
            self._obey(self._next())

    def _load(self, start: Start) -> None:
        from gpu_worker.runner.model_runner import ModelRunner  # imports torch: seconds

        self.report(Done.JOINING)
        self._runner = ModelRunner(
            start.model, start.cache, parallel_config=start.parallel, device_config=start.device
        )
        self.report(Done.LOADED)

    def _obey(self, command: Command) -> None:
        """Executes a command; a failure is reported, but that of a section ends the rank."""
        if isinstance(command, Step):
            self._runner.apply(command)
            return
        try:
            self._perform(command)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._fail(error)

    def _perform(self, command: Command) -> None:
        match command:
            case Batch():
                self._runner.execute(command)
            case Ask.PROFILE:
                self.report(self._runner.profile())
            case Ask.SYNC:
                self.report(InStep(self._runner.num_collectives))
            case InitCacheEngine():
                self._runner.init_cache_engine(**command._asdict())
                self.report(CacheReady(self._runner.num_graphs))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, MemoryError | ValueError):
            logger.exception("a command failed")
        message = str(error).partition("\n")[0] or type(error).__name__
        self.report(Failure(message, isinstance(error, MemoryError)))


class _Forwarding(logging.Handler):
    """Sends warnings and errors to the log of rank 0."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(message)s"))
        self._follower = follower

    def emit(self, record: logging.LogRecord) -> None:
        self._follower.report(LogLine(record.levelno, record.name, self.format(record)))


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    follower = Follower(Channel(int(sys.argv[1])))
    logging.basicConfig(level=logging.WARNING, handlers=[_Forwarding(follower)])
    try:
        follower.serve()
    except Exception:
        logger.exception("this rank ends")
    os._exit(1)  # there may be threads in native code


if __name__ == "__main__":
    main()
