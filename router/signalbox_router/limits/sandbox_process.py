"""Runs a limited program for one job of a client, which may need unlimited time and memory.

The program reads the job from its standard input and writes the answer; both are JSON.
"""

import asyncio
import json
import signal
from typing import Any

from signalbox_rpc.lifetime.limited_program import ProgramLimits, command

WALL_LIMIT_S = 20.0
"""Seconds on a busy machine; normally the CPU limit applies first."""
OUT_OF_TIME = "it takes more time than it may"
OUT_OF_MEMORY = "it takes more memory than it may"


async def run_limited(module: str, job: object, limits: ProgramLimits) -> dict[str, Any]:
    """Returns the answer of the module's `main`, or an "error" with the reason if there is none."""
    process = await asyncio.create_subprocess_exec(
        *command(module, limits=limits),
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
    if not output:  # a process out of memory aborts
        is_late = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        return {"error": OUT_OF_TIME if is_late else OUT_OF_MEMORY}
    answer: dict[str, Any] = json.loads(output)
    return answer
