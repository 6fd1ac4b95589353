"""What the scheduler and each worker keep within."""

from pydantic import Field

from signalbox.settings.base import TelemetrySettings


class LimitSettings(TelemetrySettings):
    """Of a step; the scheduler keeps within its own and each worker's."""

    max_num_seqs: int = Field(256, gt=0, description="most sequences in a step")
    max_num_batched_tokens: int | None = Field(
        None,
        gt=0,
        description="most tokens in a step (default: what suits the device, 512 on a CPU)",
    )
