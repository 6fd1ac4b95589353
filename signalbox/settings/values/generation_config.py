"""Type of a setting with a generation_config.json's content, checked before a model is loaded."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from contract.sampling_defaults import check_override


def _text(value: Any) -> Any:
    """Returns the value as JSON text; a YAML file may give a mapping."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def _checked(text: str) -> str:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    check_override(config)
    return text


GenerationConfig = Annotated[str, BeforeValidator(_text), AfterValidator(_checked)]
"""A generation_config.json as text."""
