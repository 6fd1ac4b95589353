"""Runs a file as a process that lives for one job, which a client has made and may cost anything.

The file reads the job from its standard input, limits itself by what the kernel enforces, and
writes the answer; both are JSON.
"""

import asyncio
import json
import sys
from typing import Any

WALL_LIMIT_S = 20.0
"""On a machine that is busy; what counts is the limit of CPU time."""


async def run_limited(file: str, job: object, *, cpu_limit_s: float) -> dict[str, Any]:
    """Returns the answer, or an "error" that says that there is none.

    Args:
        cpu_limit_s: what the file limits itself to.
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
    if not output:
        return {"error": f"it takes more than {cpu_limit_s:g} s"}
    answer: dict[str, Any] = json.loads(output)
    return answer
