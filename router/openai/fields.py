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
        raise _out_of_range(param or name, value) from None


def extend_field(
    message: Any, name: str, values: Iterable[Any], *, param: str | None = None
) -> None:
    for value in values:
        try:
            getattr(message, name).append(value)
        except (ValueError, TypeError, OverflowError):
            raise _out_of_range(param or name, value) from None


def _out_of_range(param: str, value: object) -> InvalidArgument:
    allowed = {**RANGES, **REQUEST_RANGES}
    text = allowed[param].text if param in allowed else "what the field's type holds, from 0 on"
    return InvalidArgument(param, value, text)
