"""Reads the fields of a `quantization_config`, and refuses by name what is not read.

A field that tells how codes were chosen has no effect on what they mean; each reader lists those
that it knows. Any other one must be neutral: absent, null, false or empty.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from signalbox_worker.config import ModelError

Described = Mapping[str, Any]
MAX_GROUP_SIZE = 1 << 20
"""More columns than any matrix has."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, "", [], {})


def first(described: Described, default: Any, *names: str) -> Any:
    """Returns the first of several fields that is there."""
    return next((described[name] for name in names if described.get(name) is not None), default)


def arguments(described: Described) -> Described:
    """Returns a scheme of compressed-tensors with the defaults of its QuantizationArgs for fields
    that are null or left out; the size of groups says how scales are shared."""
    size = described.get("group_size")
    strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    defaults = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy}
    given = {name: value for name, value in described.items() if value is not None}
    return {**defaults, "dynamic": False, **given}


def expect(described: Described, method: str, value: Any, *names: str) -> None:
    """Raises ModelError if a field has another value than the one that is served."""
    found = first(described, value, *names)
    if (found.lower() if isinstance(found, str) else found) != value:
        raise not_served(method, f"{names[0]} {str(found)[:40]!r}", repr(value))


def refuse_others(described: Described, method: str, known: Iterable[str]) -> None:
    """Raises ModelError for a field that is neither known nor neutral."""
    others = described.keys() - {*known, "quant_method"}
    for name in sorted(others):
        if described[name] not in _NEUTRAL:
            raise not_served(method, f"{name} {str(described[name])[:40]!r}", f"no {name}")


def group_size(described: Described, *names: str) -> int | None:
    """None stands for a scale for each row."""
    size = first(described, 128, *names)
    if size == -1:
        return None
    if not isinstance(size, int) or not 16 <= size <= MAX_GROUP_SIZE or size % 16:
        raise ModelError(
            f"the checkpoint is quantised in groups of {str(size)[:40]}; use one with groups of a "
            "multiple of 16, such as 128, or of whole rows (-1)"
        )
    return size


def not_served(method: str, found: str, served: str) -> ModelError:
    """Returns the error for a form that is known by name, but not in this variety."""
    return ModelError(
        f"the checkpoint is quantised by {method} with {found}, which is not supported; use one "
        f"with {served}"
    )
