"""Prepares structured outputs: checks form and size, closes schemas, checks that they compile.

Compiling may cost any time and memory, so it is tried by a process with limits (`rpc.grammar`), a
few at a time; what has been found out is remembered.
"""

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from router.closed_schema import close_schema
from router.limited_process import run_limited
from rpc import grammar
from rpc.errors import InvalidArgument

MAX_BYTES = 64 << 10
MAX_CHOICES = 1024
MAX_PROCESSES = 2
_MAX_REMEMBERED = 1024
MAX_REMEMBERED_CHARS = 64 << 20
"""Of constraints, before and after they are closed."""
_FIELD = "sampling_params.structured_output"

Constraint = tuple[str, ...]


def check_structured_output(constraint: Constraint) -> None:
    """Checks all but whether it can be compiled."""
    kind, *texts = constraint
    if not kind:
        raise InvalidArgument(_FIELD, None, "exactly one constraint")
    field = f"{_FIELD}.{kind}"
    num_bytes = sum(len(text.encode()) for text in texts)
    if num_bytes > MAX_BYTES:
        raise InvalidArgument(field, f"{num_bytes} bytes", f"at most {MAX_BYTES} bytes")
    if kind == "choice" and not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidArgument(field, f"a list of {len(texts)}", f"1 to {MAX_CHOICES} strings")
    if not all(texts):
        raise InvalidArgument(field, "", "a text that is not empty")


def cannot_compile(constraint: Constraint, fault: str) -> InvalidArgument:
    """Returns the error of a constraint that is refused for what `rpc.grammar` says."""
    kind, *texts = constraint
    return InvalidArgument(f"{_FIELD}.{kind}", texts[0] if texts else "", f"valid ({fault})")


def forms_of(constraint: Constraint, *, disable_additional_properties: bool) -> list[Constraint]:
    """Returns what is compiled: the first form that can be. The last is the constraint itself.

    Args:
        disable_additional_properties: whether a schema's objects are closed, see `closed_schema`.
    """
    kind, *texts = constraint
    if kind != "json_schema" or not disable_additional_properties:
        return [constraint]
    closed = (kind, close_schema(texts[0]))
    return [constraint] if closed == constraint else [closed, constraint]


class _Outcome(NamedTuple):
    """Result of preparing a constraint: the form that compiles, or the fault of all forms."""

    prepared: Constraint
    fault: str | None


def _num_chars(constraint: Constraint, outcome: _Outcome) -> int:
    return sum(map(len, (*constraint, *outcome.prepared)))


class GrammarChecker:
    """Prepares constraints, tries to compile them, and remembers what came of it."""

    def __init__(self, *, disable_additional_properties: bool = True) -> None:
        self._disable_additional_properties = disable_additional_properties
        self._processes = asyncio.Semaphore(MAX_PROCESSES)
        self._outcomes: OrderedDict[Constraint, _Outcome] = OrderedDict()
        self._num_chars = 0

    async def prepare(self, constraint: Constraint) -> Constraint:
        """Returns what the worker compiles.

        Raises InvalidArgument for what cannot be compiled, or takes long.
        """
        if constraint in self._outcomes:
            self._outcomes.move_to_end(constraint)
        else:
            self._remember(constraint, await self._find_outcome(constraint))
        prepared, fault = self._outcomes[constraint]
        if fault is not None:
            raise cannot_compile(constraint, fault)
        return prepared

    def _remember(self, constraint: Constraint, outcome: _Outcome) -> None:
        """Keeps an outcome, and forgets the oldest beyond the bounds."""
        if constraint in self._outcomes:  # two requests have found it out
            return
        self._outcomes[constraint] = outcome
        self._num_chars += _num_chars(constraint, outcome)
        while len(self._outcomes) > _MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
            self._num_chars -= _num_chars(*self._outcomes.popitem(last=False))

    async def _find_outcome(self, constraint: Constraint) -> _Outcome:
        forms = await asyncio.to_thread(
            forms_of,
            constraint,
            disable_additional_properties=self._disable_additional_properties,
        )
        for form in forms:
            fault = await self._find_fault(form)
            if fault is None:
                return _Outcome(form, None)
        return _Outcome(constraint, fault)

    async def _find_fault(self, constraint: Constraint) -> str | None:
        async with self._processes:
            answer = await run_limited(
                grammar.__file__, constraint, cpu_limit_s=grammar.CPU_LIMIT_S
            )
        fault: str | None = answer.get("error") or answer.get("fault")
        return fault
