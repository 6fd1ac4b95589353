"""Sets fields of messages; what a field's type cannot hold is an error that names it."""

from collections.abc import Iterable
from typing import Any

from router.validation import RANGES, REQUEST_RANGES
from rpc.errors import InvalidArgument


def set_field(message: Any, name: str, value: Any, *, param: str | None = None) -> None:
    """Sets a field unless the value is None."""
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (ValueError, TypeError, OverflowError):
        raise _out_of_range(message, name, value, param=param or name) from None


def extend_field(
    message: Any, name: str, values: Iterable[Any], *, param: str | None = None
) -> None:
    for value in values:
        try:
            getattr(message, name).append(value)
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(message, name, value, param=param or name) from None


def _out_of_range(message: Any, name: str, value: object, *, param: str) -> InvalidArgument:
    known = {**RANGES, **REQUEST_RANGES}.get(name)
    field = message.DESCRIPTOR.fields_by_name[name]
    highest = {
        field.CPPTYPE_UINT32: (1 << 32) - 1,
        field.CPPTYPE_UINT64: (1 << 64) - 1,
    }.get(field.cpp_type)
    if known is not None and (highest is None or known.high < highest):
        return InvalidArgument(param, value, known.text)
    if highest is None:
        return InvalidArgument(param, value, "what the field's type holds")
    lowest = 0 if known is None else int(known.low)
    return InvalidArgument(param, value, f"[{lowest}, {highest}]")
