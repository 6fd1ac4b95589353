"""What Triton's interpreter converts to and from E4M3, as a GPU does.

The interpreter's own conversion cuts off or rounds up without carrying into the exponent, and reads
a NaN as 480.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def exact_e4m3(convert: Any) -> Any:
    """Returns a function in place of the interpreter's `_convert_float`, which is `convert`."""
    import triton.language as tl

    def exactly(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target == tl.float8e4nv:
            wide = values
            if source != tl.float32:
                wide = convert(values, source, tl.float32, None)
            floats = _tensor(wide.view(np.float32)).clamp(-448.0, 448.0)  # as cvt.satfinite does
            return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        if source == tl.float8e4nv:
            bits = _tensor(values.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
            if target == tl.float32:
                return bits.view(np.uint32)
            return convert(bits, tl.float32, target, rounding)
        return convert(values, source, target, rounding)

    return exactly


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
