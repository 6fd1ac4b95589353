"""Prints what the compiler makes of every kernel, as a table of all capabilities.

    python -m tests.kernels.triton.compiled_table

Sizes of heads that only some capabilities compile in the matrix are left out.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CAPABILITIES = (80, 89, 90, 100, 120)


def compiled(capability: int) -> list[dict[str, Any]]:
    """Compiles the matrix for a capability, which takes about a minute."""
    program = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, str(program), str(capability), "bfloat16", "float16", "float32"],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def table(found: Mapping[int, Iterable[dict[str, Any]]]) -> str:
    """Returns a line for each kernel and case, with the worst of its variants."""
    cells = defaultdict[tuple[str, str], dict[int, str]](dict)
    for capability, kernels in found.items():
        variants = defaultdict[tuple[str, str], list[dict[str, Any]]](list)
        for each in kernels:
            variants[each["kernel"].strip("_").removesuffix("_kernel"), each["case"]].append(each)
        for key, same in variants.items():
            registers = max(each["registers"] for each in same)
            stack = max(each["stack_bytes"] for each in same)
            shared = max(each["shared_bytes"] for each in same) / 1024
            copies = min(each["copies_of_16_bytes"] for each in same)
            cells[key][capability] = f"{registers} / {stack} / {shared:.3g} / {copies}"
    names = [f"{capability // 10}.{capability % 10}" for capability in found]
    lines = [f"| kernel | case | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    lines += [
        f"| `{kernel}` | {case} | {' | '.join(row.values())} |"
        for (kernel, case), row in cells.items()
        if len(row) == len(found)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table({capability: compiled(capability) for capability in CAPABILITIES}))
