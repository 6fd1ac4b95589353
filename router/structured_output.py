"""Checks structured outputs at the door: their form and size, then that they can be compiled.

Compiling may cost any time and memory, so it is tried by a process with limits (`rpc.grammar`), a
few at a time; what has been found out is remembered.
"""

import asyncio
from collections import OrderedDict

from router.limited_process import run_limited
from rpc import grammar
from rpc.errors import InvalidArgument

MAX_BYTES = 64 << 10
MAX_CHOICES = 1024
MAX_PROCESSES = 2
_MAX_REMEMBERED = 1024
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


class GrammarChecker:
    """Tries to compile constraints, and remembers what came of it."""

    def __init__(self) -> None:
        self._processes = asyncio.Semaphore(MAX_PROCESSES)
        self._faults: OrderedDict[Constraint, str | None] = OrderedDict()

    async def check(self, constraint: Constraint) -> None:
        """Raises InvalidArgument for what cannot be compiled, or takes long."""
        if constraint in self._faults:
            self._faults.move_to_end(constraint)
        else:
            self._faults[constraint] = await self._find_fault(constraint)
            while len(self._faults) > _MAX_REMEMBERED:
                self._faults.popitem(last=False)
        fault = self._faults[constraint]
        if fault is not None:
            raise cannot_compile(constraint, fault)

    async def _find_fault(self, constraint: Constraint) -> str | None:
        async with self._processes:
            answer = await run_limited(
                grammar.__file__, constraint, cpu_limit_s=grammar.CPU_LIMIT_S
            )
        fault: str | None = answer.get("error") or answer.get("fault")
        return fault
