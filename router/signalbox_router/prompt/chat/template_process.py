"""A process that renders conversations by one chat template, one after the other.

`template_renderer` runs `main` within limits (`signalbox_rpc.lifetime.limited_program`) and sends
it the template, then jobs; each is a line of JSON, as each answer is. A job that takes too much
time or memory ends the process. It imports little of ours, to start fast.
"""

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2

from signalbox_router.prompt.chat.provenance import Text, writers_of
from signalbox_router.prompt.chat.template_facts import facts_of
from signalbox_router.prompt.chat.template_sandbox import ENVIRONMENT, TooLong, render

CPU_LIMIT_S = 2.0
CPU_LIMIT_S_PER_MIB = 0.5
"""CPU seconds of a job by its size, of which the longest legal conversations have 10 MiB."""
WALL_LIMIT_S = 60.0
"""Seconds on the clock of a busy machine; normally the CPU limit applies first."""
MEMORY_LIMIT_BYTES = 512 << 20
_SLOW_S = 0.1
"""CPU seconds after which a job goes on with a lower priority, and the process ends with it.
Loading ends no process, and does not lower its priority if the template is the model's."""
_LOWER = 10
"""Niceness of such a process: it gets a tenth of a busy processor."""
_COLLECT_EVERY = 16
"""Jobs between two collections of garbage; a collection within a job would only find its data."""


def cpu_limit_s(num_bytes: int) -> float:
    """Returns the CPU seconds that a job of so many bytes may take."""
    return CPU_LIMIT_S + CPU_LIMIT_S_PER_MIB * num_bytes / (1 << 20)


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """Returns the texts of a message's content, whose writers are sent with them."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _restore_writers(message: dict[str, Any], writers: Sequence[str | None]) -> None:
    texts = [
        text if one is None else Text(text, one.encode())
        for text, one in zip(texts_of(message), writers, strict=True)
    ]
    if isinstance(message["content"], str):
        (message["content"],) = texts
    else:
        message["content"] = [{"type": "text", "text": text} for text in texts]


class _Renderer:
    """The template of this process."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = special_tokens
        self._template = ENVIRONMENT.from_string(source)

    def render(self, job: Mapping[str, Any]) -> dict[str, str]:
        for i, writers in job["writers"]:
            _restore_writers(job["messages"][i], writers)
        text = render(
            self._template,
            {**job["variables"], "messages": job["messages"], "tools": job["tools"]},
            special_tokens=self._special_tokens,
            max_bytes=job["max_bytes"],
        )
        return {"text": text, "writers": writers_of(text).decode()}


def _answers() -> Iterator[dict[str, Any]]:
    """Yields the answer to each line. Raises MemoryError."""
    renderer: _Renderer | None = None
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_VIRTUAL, _SLOW_S)
        signal.setitimer(signal.ITIMER_PROF, cpu_limit_s(len(line)))
        signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT_S)
        try:
            job = json.loads(line)
            if renderer is None:
                if not job["is_clients"]:
                    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
                renderer = _Renderer(job["source"], job["special_tokens"])
                takes_tools, takes_calls, form = facts_of(job["source"])
                yield {"facts": [takes_tools, takes_calls, form.name]}
            else:
                yield renderer.render(job)
        except TooLong:
            yield {"too_long": True}
        except MemoryError:
            raise
        except jinja2.TemplateSyntaxError as error:
            yield {"error": f"{error.message} in line {error.lineno}"}
        except Exception as error:  # a template may raise any exception
            yield {"error": str(error)[:1000] or type(error).__name__}


def main() -> None:
    """Returns once the input ends or a job has taken much. Raises MemoryError."""
    is_slow = False

    def lower_priority(*_: object) -> None:
        nonlocal is_slow
        is_slow = True
        os.nice(_LOWER)

    signal.signal(signal.SIGVTALRM, lower_priority)
    gc.disable()
    for number, answer in enumerate(_answers()):
        line = json.dumps(answer)
        for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        ends = is_slow and number > 0  # the first answer is that the template is loaded
        sys.stdout.write(f'{line[:-1]}, "ends": {json.dumps(ends)}}}\n')
        sys.stdout.flush()
        if ends:
            return
        if not number:
            gc.freeze()
        elif number % _COLLECT_EVERY == 0:
            gc.collect()
