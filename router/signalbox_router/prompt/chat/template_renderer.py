"""A process of `template_process` that renders by one template; its methods block.

A job is encoded in pieces, so that other threads run in between.
"""

import json
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from signalbox_router.prompt.chat import template_process
from signalbox_router.prompt.chat.provenance import Text, writers_of
from signalbox_router.prompt.chat.template_facts import ContentForm, TemplateFacts
from signalbox_rpc.lifetime.limited_program import ProgramLimits, command

_LIMITS = ProgramLimits(memory_bytes=template_process.MEMORY_LIMIT_BYTES)
_OUT_OF_TIME = (-signal.SIGPROF, -signal.SIGALRM)
_OF_OTHERS = (0, -signal.SIGKILL, -signal.SIGTERM)
"""Ends that no template causes; without memory, Python may end in several other ways."""


class TemplateFailed(Exception):
    """A template cannot be rendered, with the reason."""


class TemplateTakesTooMuch(TemplateFailed):
    """A template takes more time or memory than it may."""


class TemplateTooLong(TemplateTakesTooMuch):
    """A template makes more text than it may."""


class RendererLost(Exception):
    """The process ended without a fault of the template, such as by a signal of others."""


class TemplateRenderer:
    """One process."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, is_clients: bool) -> None:
        """Starts the process, which loads the template meanwhile. Raises OSError.

        Args:
            is_clients: True lowers the priority of a process that loads for long.
        """
        process = subprocess.Popen(
            command(template_process.__name__, limits=_LIMITS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in ("TZ",) if name in os.environ},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._end = weakref.finalize(self, _end, process)
        self._num_sent = 0
        self._ends = False
        self._facts: TemplateFacts | None = None
        tokens = dict(special_tokens)
        job = {"source": source, "special_tokens": tokens, "is_clients": is_clients}
        self._send([json.dumps(job)])

    @property
    def is_ready(self) -> bool:
        """True if the process can take another job."""
        return not self._ends and self._process.poll() is None

    def load(self) -> TemplateFacts:
        """Waits until the template is loaded. Raises TemplateFailed or RendererLost."""
        if self._facts is None:
            takes_tools, takes_calls, form = self._answer()["facts"]
            self._facts = TemplateFacts(takes_tools, takes_calls, ContentForm[form])
        return self._facts

    def render(self, variables: Mapping[str, Any], *, max_bytes: int) -> Text:
        """Returns the prompt of a conversation's variables. Raises TemplateFailed or
        RendererLost."""
        self.load()
        messages, tools = variables["messages"], variables["tools"]
        others = {name: one for name, one in variables.items() if name not in ("messages", "tools")}
        job = {"variables": others, "writers": _writers(messages), "max_bytes": max_bytes}
        try:
            pieces = [json.dumps(job)[:-1], *_listed("messages", messages)]
            pieces += [', "tools": null'] if tools is None else _listed("tools", tools)
        except (TypeError, ValueError) as error:  # variables of a caller in this process
            raise TemplateFailed(f"a variable is no JSON: {error}") from None
        self._send([*pieces, "}"])
        answer = self._answer()
        if "too_long" in answer:
            raise TemplateTooLong(f"it renders more than {max_bytes} bytes")
        return Text(answer["text"], answer["writers"].encode())

    def kill(self) -> None:
        """Kills the process; a call that waits for its answer raises RendererLost."""
        self._process.kill()

    def end(self) -> None:
        """Kills the process and waits for its end."""
        self._end()

    def _send(self, pieces: Sequence[str]) -> None:
        line = "".join(pieces).encode() + b"\n"
        self._num_sent = len(line)
        with suppress(OSError):  # then there is no answer
            self._stdin.write(line)
            self._stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line.endswith(b"\n"):
            raise self._excess()
        answer: dict[str, Any] = json.loads(line)
        self._ends = answer["ends"]
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        return answer

    def _excess(self) -> TemplateTakesTooMuch | RendererLost:
        """Says why the process has ended."""
        code = self._process.wait()
        if code in _OUT_OF_TIME:
            limit = template_process.cpu_limit_s(self._num_sent)
            return TemplateTakesTooMuch(f"it takes more than {limit:.3g} s")
        if code in _OF_OTHERS:
            return RendererLost(f"a process that renders chat templates ended with {code}")
        limit_mib = template_process.MEMORY_LIMIT_BYTES >> 20
        return TemplateTakesTooMuch(f"it takes more than {limit_mib} MiB of memory")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):  # for bytes that were not written
            if stream is not None:
                stream.close()


def _listed(name: str, items: Sequence[Any]) -> list[str]:
    """Returns the pieces of a member that is a list."""
    first, *others = map(json.dumps, items)
    return [f', "{name}": [{first}', *(f", {one}" for one in others), "]"]


def _writers(messages: Sequence[Mapping[str, Any]]) -> list[tuple[int, list[str | None]]]:
    """Returns the writers of the texts that this server has written a part of, by message."""
    texts = [(i, template_process.texts_of(message)) for i, message in enumerate(messages)]
    return [
        (i, [writers_of(text).decode() if isinstance(text, Text) else None for text in some])
        for i, some in texts
        if any(isinstance(text, Text) for text in some)
    ]
