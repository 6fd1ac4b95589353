"""Runs a file as a process for one job of a client, which may need unlimited time and memory.

The file reads the job from its standard input, sets limits that the kernel enforces, and writes the
answer; both are JSON.
"""

import asyncio
import json
import signal
import sys
from typing import Any

WALL_LIMIT_S = 20.0
"""Seconds on a busy machine; normally the CPU limit applies first."""
OUT_OF_MEMORY = "it takes more memory than it may"


async def run_limited(file: str, job: object, *, cpu_limit_s: float) -> dict[str, Any]:
    """Returns the answer, or an "error" with the reason if there is none.

    Args:
        cpu_limit_s: CPU seconds that the file limits itself to.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        file,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        async with asyncio.timeout(WALL_LIMIT_S):
            output, _ = await process.communicate(json.dumps(job).encode())
    except TimeoutError:
        output = b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if not output:  # a process out of memory aborts, one out of time is killed
        is_late = process.returncode == -signal.SIGKILL
        return {"error": f"it takes more than {cpu_limit_s:g} s" if is_late else OUT_OF_MEMORY}
    answer: dict[str, Any] = json.loads(output)
    return answer
