"""Values that no reader of a model's configuration may stumble over, whatever field has them."""

import math
from typing import Any

UNSOUND: list[Any] = [
    *(None, True, False, 0, -1, 1 << 30, (1 << 31) - 1, 10**40),
    *(-1.5, 1e308, 1e-320, math.nan, math.inf),
    *("", "x", [], [[]], [None], [1, "x"], ["x", "x"], [-1, -1]),
    *({}, {"x": 1}, {"rope_type": []}, {"full_attention": 1}, {"rope_theta": 0}),
]
