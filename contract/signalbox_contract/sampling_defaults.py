"""A model's default sampling parameters, which a worker sends to the routers.

They are the fields of Hugging Face's generation_config.json that vLLM reads too. A router applies
them to the parameters that a request leaves unset.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from signalbox_protos.common.v1 import common_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultParams:
    """Default sampling parameters of one source; None where it has no default. See worker.proto."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def fields(self) -> dict[str, Any]:
        """Returns the defaults that are set, under the names of inference.proto."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Default sampling parameters of a served model; `override` takes precedence over `model`."""

    model: DefaultParams = field(default_factory=DefaultParams)
    override: DefaultParams = field(default_factory=DefaultParams)

    def fields(self) -> dict[str, Any]:
        """Returns the defaults in force, under the names of inference.proto."""
        return self.model.fields() | self.override.fields()


NO_DEFAULTS = SamplingDefaults()


def decode(message: pb.SamplingDefaults) -> SamplingDefaults:
    return SamplingDefaults(
        model=_default_params(message.model), override=_default_params(message.override)
    )


def _default_params(message: pb.DefaultParams) -> DefaultParams:
    return DefaultParams(**{field.name: value for field, value in message.ListFields()})


def encode(defaults: SamplingDefaults) -> pb.SamplingDefaults:
    return pb.SamplingDefaults(
        model=pb.DefaultParams(**defaults.model.fields()),
        override=pb.DefaultParams(**defaults.override.fields()),
    )
