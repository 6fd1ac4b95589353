"""Sets fields of messages; a value that the field's type cannot hold raises an error with its
name."""

from collections.abc import Iterable, Sequence
from typing import Any

from contract.errors import InvalidArgument
from router.params.params_validation import RANGES, REQUEST_RANGES
from router.params.token_validation import RUN

UINT32_MAX = (1 << 32) - 1


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
    field = getattr(message, name)
    try:
        field.extend(values)
    except (ValueError, TypeError, OverflowError):
        culprit = next(value for value in values if not _holds(field, value))
        raise _out_of_range(message, name, culprit, param=param or name) from None


def check_token_ids(token_ids: Sequence[int], *, param: str) -> None:
    """Raises InvalidArgument for an id that is not a uint32."""
    for start in range(0, len(token_ids), RUN):  # other threads run between two calls
        run = token_ids[start : start + RUN]
        for extreme in (min(run), max(run)):
            if not 0 <= extreme <= UINT32_MAX:
                raise InvalidArgument(param, extreme, f"[0, {UINT32_MAX}]")


def _holds(field: Any, value: Any) -> bool:
    try:
        field.append(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _out_of_range(message: Any, name: str, value: object, *, param: str) -> InvalidArgument:
    known = {**RANGES, **REQUEST_RANGES}.get(name)
    field = message.DESCRIPTOR.fields_by_name[name]
    highest = {
        field.CPPTYPE_UINT32: UINT32_MAX,
        field.CPPTYPE_UINT64: (1 << 64) - 1,
    }.get(field.cpp_type)
    if known is not None and (highest is None or known.high < highest):
        return InvalidArgument(param, value, known.text)
    if highest is None:
        return InvalidArgument(param, value, "a value of the field's type")
    lowest = 0 if known is None else int(known.low)
    return InvalidArgument(param, value, f"[{lowest}, {highest}]")
