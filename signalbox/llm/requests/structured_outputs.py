"""`StructuredOutputsParams`: vLLM's constraint that a text must conform to."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from signalbox_contract.structured_output.grammar import faulty_definition, find_fault
from signalbox_router.apis.openai.requests.foreign_fields import STRUCTURED_OUTPUTS
from signalbox_router.params import structured_output_check
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_UNSERVED = {name: row for name, row in STRUCTURED_OUTPUTS.items() if not name.startswith("_")}
"""Options of vLLM's that are not served; it sets those with an underscore itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one constraint. Raises ValueError or TypeError.

    Args:
        json: a JSON schema, as text or as a dictionary; also a Pydantic model.
        json_object: True for any JSON object.
        regex: a regular expression that matches the whole text.
        grammar: a context-free grammar, in GBNF or in Lark's syntax.
        choice: strings, one of which is the text.

    vLLM's other options may be given at their defaults, and are refused by name otherwise.
    """

    json: str | dict[str, Any] | type | None = None
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    disable_any_whitespace: bool = field(default=False, repr=False)
    disable_additional_properties: bool = field(default=False, repr=False)
    whitespace_pattern: str | None = field(default=None, repr=False)
    structural_tag: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, row in _UNSERVED.items():
            if not row.asks_for_nothing(getattr(self, name)):
                raise ValueError(
                    f"structured_outputs.{name} is not served; leave it {row.default!r}"
                )
        kinds = [one.name for one in fields(self) if one.name not in _UNSERVED]
        named = [name for name in kinds if getattr(self, name) not in (None, False)]
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ValueError(f"structured_outputs must have exactly one constraint; got {got}")
        for name in ("regex", "grammar"):
            if not isinstance(getattr(self, name) or "", str):
                raise TypeError(f"structured_outputs.{name} must be a string")
        if isinstance(self.choice, str) or not all(isinstance(c, str) for c in self.choice or ()):
            raise TypeError("structured_outputs.choice must be a list of strings")

    def constraint(self) -> tuple[str, ...]:
        """Returns the constraint in the router's form."""
        if self.json is not None:
            return ("json_schema", _schema(self.json))
        if self.json_object:
            return ("json_object",)
        if self.choice is not None:
            return ("choice", *self.choice)
        return ("grammar", self.grammar or "") if self.regex is None else ("regex", self.regex)


def _schema(schema: str | dict[str, Any] | type) -> str:
    if isinstance(schema, str):
        return schema
    make = getattr(schema, "model_json_schema", None)  # of a Pydantic model
    return json_module.dumps(schema if make is None else make())


def prepare(
    constraint: tuple[str, ...], vocabulary: Vocabulary, *, disable_additional_properties: bool
) -> tuple[str, ...]:
    """Returns the constraint for the worker. Raises InvalidArgument if it cannot be compiled.

    It compiles in this process, because the constraint is the caller's own.
    """
    closed = structured_output_check.closed_form(
        constraint, disable_additional_properties=disable_additional_properties
    )
    special_tokens = structured_output_check.named_tokens(closed, vocabulary)
    if (fault := _find_fault(closed, special_tokens)) is not None:
        definition = faulty_definition(closed)
        raise structured_output_check.cannot_compile(constraint, fault, definition)
    return closed


_find_fault = lru_cache(maxsize=256)(find_fault)
