"""The option that names LoRA adapters and their folders, in our form and in vLLM's."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from signalbox_contract.model import check_adapter_name
from signalbox_rpc.settings.quantities import texts


def _adapters_as_texts(value: Any) -> Any:
    """Returns NAME=PATH for an adapter that is written as vLLM's JSON: {"name": ..., "path": ...}.

    Raises ValueError.
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        found = json.loads(value)
        value = found if isinstance(found, list) else [found]
    if not isinstance(value, list | tuple):
        return texts(value)
    return texts([_adapter_as_text(one) for one in value])


def _adapter_as_text(one: Any) -> Any:
    if isinstance(one, str) and one.lstrip().startswith("{"):
        one = json.loads(one)
    if not isinstance(one, Mapping):
        return one
    if not {"name", "path"} <= one.keys() or one.keys() - {"name", "path", "base_model_name"}:
        raise ValueError('an adapter is NAME=PATH, or {"name": NAME, "path": PATH}')
    return f"{one['name']}={one['path']}"


def name_and_path(text: str) -> tuple[str, str]:
    """Divides NAME=PATH."""
    name, _, path = text.partition("=")
    return name.strip(), path.strip()


def _checked_adapters(given: tuple[str, ...]) -> tuple[str, ...]:
    names = set[str]()
    for name, path in map(name_and_path, given):
        if not name or not path:
            raise ValueError("an adapter is NAME=PATH")
        check_adapter_name(name)
        if name in names:
            raise ValueError(f"two adapters are named {name}")
        names.add(name)
    return given


AdapterOption = Annotated[
    tuple[str, ...], BeforeValidator(_adapters_as_texts), AfterValidator(_checked_adapters)
]
"""NAME=PATH of each adapter."""
