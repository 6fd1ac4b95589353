"""Limits of a step, for the scheduler and each worker."""

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from signalbox.settings.base_settings import TelemetrySettings
from signalbox.settings.values.quantities import Count, count


class LimitSettings(TelemetrySettings):
    """Limits of a step; the scheduler applies its own and each worker's."""

    GROUP: ClassVar[str] = "scheduling"

    max_num_seqs: Count = Field(256, gt=0, description="most sequences in a step")
    max_num_batched_tokens: Annotated[int | None, BeforeValidator(count)] = Field(
        None,
        gt=0,
        description="most tokens in a step (default: what suits the device, 512 on a CPU)",
    )
