"""Sets fields of messages; a value that the field's type cannot hold raises an error with its
name."""

from collections.abc import Iterable
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import API_LIMITS
from signalbox_router.params.params_validation import REQUEST_LIMITS

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


def _holds(field: Any, value: Any) -> bool:
    try:
        field.append(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def _out_of_range(message: Any, name: str, value: object, *, param: str) -> InvalidArgument:
    known = {**API_LIMITS, **REQUEST_LIMITS}.get(name)
    field = message.DESCRIPTOR.fields_by_name[name]
    highest = {
        field.CPPTYPE_UINT32: UINT32_MAX,
        field.CPPTYPE_UINT64: (1 << 64) - 1,
    }.get(field.cpp_type)
    if known is not None and (highest is None or known.most < highest):
        return InvalidArgument(param, value, str(known))
    if highest is None:
        return InvalidArgument(param, value, "a value of the field's type")
    lowest = 0 if known is None else int(known.least)
    return InvalidArgument(param, value, f"[{lowest}, {highest}]")
