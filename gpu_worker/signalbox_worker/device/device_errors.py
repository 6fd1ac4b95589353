"""Knows the errors after which a device computes nothing more for this process.

CUDA calls them sticky: an address out of range or a failed assertion in a kernel breaks the
process's context, and every later call returns the same error. Nothing but a new process helps, so
the worker ends with an error, its supervisor starts another, and the scheduler moves its requests.
"""

_CODES = {
    4,  # the driver is shutting down
    46,  # devices unavailable
    214,  # uncorrectable ECC error
    220,  # uncorrectable NVLink error
    700,  # illegal memory address
    702,  # a launch timed out
    709,  # the context is destroyed
    710,  # device-side assertion
    714,  # hardware stack error
    715,  # illegal instruction
    716,  # misaligned address
    717,  # invalid address space
    718,  # invalid program counter
    719,  # unspecified launch failure
}
"""Codes of cudaError_t, and of CUresult in Triton's launches, which are equal."""

_PHRASES = (
    "illegal memory access",
    "device-side assert",
    "unspecified launch failure",
    "misaligned address",
    "illegal instruction",
    "hardware stack error",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "launch timed out",
    "context is destroyed",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
    "driver shutting down",
)


class DeviceLost(RuntimeError):
    """The device computes nothing more for this process, which must end; one line."""


def exit_message(reason: str) -> str:
    """Returns what a worker says last that has lost its device or one of its processes."""
    return f"{reason}; the worker exits, and its requests continue at other workers"


def is_device_lost(error: BaseException | None) -> bool:
    """Returns whether the error, or one of its causes, stays with the process."""
    return device_loss(error) is not None


def device_loss(error: BaseException | None) -> BaseException | None:
    """Returns which of the error and its causes stays with the process."""
    while error is not None and not (isinstance(error, DeviceLost) or _is_sticky(error)):
        error = error.__cause__
    return error


def _is_sticky(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    if "cuda" not in text:
        return False
    return getattr(error, "error_code", None) in _CODES or any(one in text for one in _PHRASES)
