"""The hash of the simulated worker.

It is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""

import numpy as np
from numpy.typing import NDArray

UInt64Array = NDArray[np.uint64]

MASK = (1 << 64) - 1
TOKEN, POSITION, SALT = 0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03, 0x8CB9_2BA7_2F3D_8DD7
SEGMENT, PART = 0xA24B_AED4_963E_E407, 0x9FB2_1C65_1E98_DF25


def mix(x: UInt64Array) -> UInt64Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed: UInt64Array = x ^ (x >> np.uint64(31))
    return mixed


def adapter_key(sha256: str) -> int:
    """Returns what an adapter adds before a token is hashed; the base model's is 0."""
    return int(sha256[:16], 16) if sha256 else 0
