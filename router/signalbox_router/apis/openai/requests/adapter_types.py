"""Bodies of requests that load and unload LoRA adapters."""

from signalbox_router.apis.openai.requests import foreign_fields
from signalbox_router.apis.openai.requests.types import Body


class LoadAdapterBody(Body):
    """Body of POST /v1/load_lora_adapter, as in vLLM."""

    FOREIGN = foreign_fields.ADAPTER
    SUBJECT = "lora_path"

    lora_name: str
    """Name of the adapter, which requests then use as their model's; 1 to 100 characters."""
    lora_path: str
    """Folder of the adapter below each worker's --adapter-dir, absolute or relative to it."""
    load_inplace: bool | None = None
    """True to put it in the place of an adapter of that name. Requests that run keep the old one.
    Default false."""
    base_model_name: str | None = None
    """Model that gets the adapter. Default: the only model that generates."""


class UnloadAdapterBody(Body):
    """Body of POST /v1/unload_lora_adapter, as in vLLM."""

    SUBJECT = "lora_name"

    lora_name: str
    """Name of the adapter."""
    lora_int_id: int | None = None
    """No effect."""
