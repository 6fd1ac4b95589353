"""A progress bar with tokens per second, on standard error."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

REFRESH_S = 0.1


class OnProgress(Protocol):
    """Called after each step."""

    def __call__(
        self, *, num_finished: int, num_prompt_tokens: int, num_generated_tokens: int
    ) -> None: ...


@contextmanager
def showing(*, num_requests: int, is_visible: bool) -> Iterator[OnProgress]:
    """Shows the number of finished requests, and tokens per second since the beginning."""
    with Progress(
        TextColumn("prompts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[speed]}"),
        console=Console(stderr=True),
        auto_refresh=False,  # it would take a thread
        disable=not is_visible,
    ) as bars:
        task = bars.add_task("prompts", total=num_requests, speed="")
        start = refreshed = time.monotonic()

        def report(*, num_finished: int, num_prompt_tokens: int, num_generated_tokens: int) -> None:
            nonlocal refreshed
            now = time.monotonic()
            if not is_visible or (now - refreshed < REFRESH_S and num_finished < num_requests):
                return
            refreshed = now
            seconds = max(now - start, 1e-9)
            speed = (
                f"input {num_prompt_tokens / seconds:.1f} tok/s, "
                f"output {num_generated_tokens / seconds:.1f} tok/s"
            )
            bars.update(task, completed=num_finished, speed=speed, refresh=True)

        yield report
