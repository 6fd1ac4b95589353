"""Reports kernels that are compiled, or read from Triton's cache, after all should have been."""

import logging
from typing import Any

import triton

logger = logging.getLogger(__name__)


def report_from_now_on() -> None:
    """Logs a warning for each kernel that this process did not have until now."""
    triton.knobs.runtime.jit_post_compile_hook = _report


def _report(*, fn: Any, **_: Any) -> None:
    logger.warning("the kernel %s was compiled while requests were served", fn.name)
