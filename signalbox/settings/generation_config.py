"""A setting that is a generation_config.json's content: refused here, before a model is loaded."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from rpc.sampling_defaults import check_override


def _text(value: Any) -> Any:
    """A YAML file may have it as a mapping."""
    return json.dumps(value) if isinstance(value, Mapping) else value


def _checked(text: str) -> str:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    check_override(config)
    return text


GenerationConfig = Annotated[str, BeforeValidator(_text), AfterValidator(_checked)]
"""JSON text."""
