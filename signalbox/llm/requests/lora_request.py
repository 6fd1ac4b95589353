"""vLLM's name of a LoRA adapter in a request."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """The adapter that computes a request; it is loaded when it is first asked for.

    Args:
        lora_name: name of the adapter.
        lora_int_id: number of the adapter, at least 1; one adapter has one number.
        lora_path: folder of the adapter, as PEFT saves it.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not self.lora_name or not isinstance(self.lora_name, str):
            raise ValueError(f"lora_name is {self.lora_name!r}; give the adapter a name")
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id!r}; it must be at least 1")
        if not self.lora_path:
            raise ValueError("lora_path is empty; give the adapter's folder")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


LoRAInput = LoRARequest | Sequence[LoRARequest | None] | None
"""An adapter for all prompts, or a list of one for each."""


def lora_for_each(given: LoRAInput, count: int) -> Sequence[LoRARequest | None]:
    """Raises ValueError or TypeError."""
    if given is None or isinstance(given, LoRARequest):
        return [given] * count
    if not isinstance(given, Sequence):
        raise TypeError(f"lora_request is a {type(given).__name__}; give LoRARequest")
    if len(given) != count:
        raise ValueError(f"{len(given)} lora_request for {count} prompts; give one, or as many")
    return given
