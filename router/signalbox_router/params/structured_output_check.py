"""Prepares structured outputs: checks form and size, closes schemas, and tries to compile them.

Compiling may cost any time and memory, so a process with limits tries it
(`signalbox_contract.structured_output.grammar`), a few at a time, shared fairly between payers.
Results are remembered, with the CPU time and the memory that compiling took.
"""

import asyncio
import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output import grammar
from signalbox_contract.structured_output.grammar_cost import UNMEASURED, GrammarCost
from signalbox_router.limits.fair_slots import FairSlots
from signalbox_router.limits.payers import ANYONE, Payer
from signalbox_router.limits.sandbox_process import OUT_OF_TIME, run_limited
from signalbox_router.params.closed_schema import close_schema
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary
from signalbox_rpc.lifetime.limited_program import ProgramLimits

MAX_BYTES = 64 << 10
MAX_RULES_CHARS = 256 << 10
"""Most characters of the rules of calls, or of the schema of forced calls where the model has no
format: both hold the schemas of tools."""
MAX_CHOICES = 1024
MAX_PROCESSES = 3
"""Trial compilations at a time; one payer gets one fewer."""
MAX_CPU_S = 3.0
MAX_MEMORY_BYTES = 192 << 20
"""Most memory of a trial; all trials and the router together stay under a gigabyte."""
_PROCESS_BYTES = 64 << 20
"""Address space of a trial beside the constraint's memory: twice what its process starts with."""
_MAX_REMEMBERED = 1024
MAX_REMEMBERED_CHARS = 64 << 20
"""Characters of remembered constraints, before and after they are closed."""
MAX_FAULT_CHARS = 400
"""Characters of a compiler's reason that an error repeats; it may quote the constraint."""
_FIELD = "sampling_params.structured_output"

DEFINITION_OF_TOOL = re.compile(r"tools\.(\d{1,9})\.parameters")
"""Names of `definition_of_tool`."""

_TOKEN_IN_RULES = re.compile(r"<[^<>\s]+>")
_NUMBER = re.compile(r"\d{1,9}")
Constraint = tuple[str, ...]
SpecialTokens = tuple[tuple[int, str], ...]
"""Ids and texts."""


def check_structured_output(constraint: Constraint) -> None:
    """Checks the form and the size, not whether it can be compiled."""
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


def definition_of_tool(position: int) -> str:
    """Returns the name of the definition that holds a tool's parameters in the schema of calls."""
    return f"tools.{position}.parameters"


def cannot_compile(constraint: Constraint, fault: str, definition: str = "") -> InvalidArgument:
    """Returns the error for a constraint that cannot be compiled, with the reason.

    Args:
        definition: the one that is at fault, if it is known. That of a tool is named as the field
            of the request, and no more than the tool's schema is shown.
    """
    kind, *texts = constraint
    field, value = f"{_FIELD}.{kind}", texts[0] if texts else ""
    reason = fault if len(fault) <= MAX_FAULT_CHARS else f"{fault[:MAX_FAULT_CHARS]}..."
    if definition:
        of_tool = DEFINITION_OF_TOOL.fullmatch(definition)
        if of_tool is not None:
            field = f"tools[{of_tool[1]}].parameters"
            of_schema = json.loads(value).get("$defs", {}) if kind == "json_schema" else {}
            parameters = of_schema.get(definition, {})
            value = json.dumps({k: v for k, v in parameters.items() if v != definition})
        else:
            reason = f"{reason}, in the definition {definition!r}"
    return InvalidArgument(field, value, reason=reason)


def closed_form(constraint: Constraint, *, disable_additional_properties: bool) -> Constraint:
    """Returns the constraint to compile: JSON schemas, also those in rules, closed as
    `closed_schema` says.

    Args:
        disable_additional_properties: False leaves its objects open.
    """
    kind, *texts = constraint
    if not disable_additional_properties:
        return constraint
    if kind == "rules":
        rules = grammar.SCHEMA_RULE.sub(lambda rule: rule[1] + close_schema(rule[2]), texts[0])
        rest = (
            closed_form(tuple(texts[1:]), disable_additional_properties=True) if texts[1:] else ()
        )
        return (kind, rules, *rest)
    return (kind, close_schema(texts[0])) if kind == "json_schema" else constraint


class Prepared(NamedTuple):
    """The constraint that the worker compiles, and its cost."""

    constraint: Constraint
    cost: GrammarCost


class _Outcome(NamedTuple):
    """Result of preparing a constraint: its closed form, and why that does not compile, if so."""

    prepared: Constraint
    fault: "_Fault | None"
    cost: GrammarCost


class _Fault(NamedTuple):
    reason: str
    definition: str = ""


class _Asked(NamedTuple):
    """A constraint, the rules around it, and the special tokens that both name."""

    constraint: Constraint
    rules: str
    special_tokens: SpecialTokens


def _num_chars(asked: _Asked, outcome: _Outcome) -> int:
    return sum(map(len, (*asked.constraint, asked.rules, *outcome.prepared)))


def named_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> SpecialTokens:
    """Returns the tokens that a grammar may mean: by name, or by number in brackets."""
    names, ids = set[str](), set[int]()
    for text in texts:
        for name in _TOKEN_IN_RULES.findall(text):
            names.add(name)
            ids.update(map(int, _NUMBER.findall(name)) if name.startswith("<[") else ())
    if not names:
        return ()
    special = vocabulary.special_tokens
    found = {token_id: text for token_id, text in special.items() if text in names}
    for token_id in (one for one in ids if one <= vocabulary.max_token_id):
        found[token_id] = special.get(token_id, f"<[{token_id}]>")
    return tuple(sorted(found.items()))


class GrammarChecker:
    """Prepares constraints, tries to compile them, and remembers the results.

    Args:
        max_cpu_s: CPU seconds of a trial; a constraint that takes more is refused.
        max_memory_bytes: peak memory of a trial; the same holds.
    """

    def __init__(
        self,
        *,
        disable_additional_properties: bool = True,
        max_cpu_s: float = MAX_CPU_S,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._disable_additional_properties = disable_additional_properties
        self._max_cpu_s = max_cpu_s
        self._max_memory_bytes = max_memory_bytes
        self._processes = FairSlots(MAX_PROCESSES)
        self._outcomes: OrderedDict[_Asked, _Outcome] = OrderedDict()
        self._num_chars = 0

    async def prepare(
        self,
        constraint: Constraint,
        *,
        rules: str = "",
        vocabulary: Vocabulary | None = None,
        payer: Payer = ANYONE,
    ) -> Prepared:
        """Returns the constraint for the worker. A trial waits for its turn among the payers.

        Raises InvalidArgument for a constraint that fails or takes too much time or memory.

        Args:
            constraint: empty if the rules have all.
            rules: those of the whole text, in which `@answer` is the constraint.
            vocabulary: the model's, whose special tokens the constraint may name.
        """
        num_chars = max(len(rules), sum(map(len, constraint)))
        if num_chars > MAX_RULES_CHARS:
            count = f"schemas of {num_chars} characters"
            raise InvalidArgument("tools", count, f"at most {MAX_RULES_CHARS} where calls conform")
        tokens = () if vocabulary is None else named_tokens((*constraint, rules), vocabulary)
        asked = _Asked(constraint, rules, tokens)
        if asked in self._outcomes:
            self._outcomes.move_to_end(asked)
        else:
            async with self._processes.slot(payer):
                # Another request may have tried it meanwhile.
                if asked not in self._outcomes:
                    self._remember(asked, await self._find_outcome(asked))
        prepared, fault, cost = self._outcomes[asked]
        if fault is not None:
            raise cannot_compile(constraint or ("rules", rules), *fault)
        return Prepared(prepared, cost)

    def _remember(self, asked: _Asked, outcome: _Outcome) -> None:
        """Stores an outcome, and drops the oldest beyond the bounds."""
        if asked in self._outcomes:  # two requests have tried it
            return
        self._outcomes[asked] = outcome
        self._num_chars += _num_chars(asked, outcome)
        while len(self._outcomes) > _MAX_REMEMBERED or self._num_chars > MAX_REMEMBERED_CHARS:
            self._num_chars -= _num_chars(*self._outcomes.popitem(last=False))

    async def _find_outcome(self, asked: _Asked) -> _Outcome:
        whole = await asyncio.to_thread(
            closed_form,
            ("rules", asked.rules, *asked.constraint) if asked.rules else asked.constraint,
            disable_additional_properties=self._disable_additional_properties,
        )
        return _Outcome(whole, *await self._try(whole, asked.special_tokens))

    async def _try(
        self, constraint: Constraint, special_tokens: SpecialTokens
    ) -> tuple[_Fault | None, GrammarCost]:
        """Returns the fault of a constraint, or None, and the cost of compiling it."""
        limits = ProgramLimits(
            cpu_s=math.ceil(self._max_cpu_s), memory_bytes=self._max_memory_bytes + _PROCESS_BYTES
        )
        answer = await run_limited(grammar.__name__, [constraint, special_tokens], limits)
        if "error" in answer:
            is_late = answer["error"] == OUT_OF_TIME
            return _Fault(self._too_much_time if is_late else self._too_much_memory), UNMEASURED
        cost = GrammarCost(answer["cpu_ns"], answer["peak_bytes"])
        if answer["fault"]:
            return _Fault(answer["fault"], answer["definition"]), cost
        excess = self._excess(cost)
        return None if excess is None else _Fault(excess), cost

    def _excess(self, cost: GrammarCost) -> str | None:
        """Returns the bound that the cost exceeds; None if it exceeds none."""
        if cost.cpu_ns > self._max_cpu_s * 1e9:
            return self._too_much_time
        if cost.peak_bytes > self._max_memory_bytes:
            return self._too_much_memory
        return None

    @property
    def _too_much_time(self) -> str:
        return f"it takes more than {self._max_cpu_s:g} s"

    @property
    def _too_much_memory(self) -> str:
        return f"it takes more than {self._max_memory_bytes >> 20} MiB of memory"
