"""Prints the modules and the types that one decode token passes.

python -m scripts.trace_token

Router, scheduler and simulated worker run in this process and talk over gRPC, as in production. A
profile function notes calls while a request decodes. A module that is called for at least half of
the tokens is on the path of a token; timers and health checks are not. A coroutine that continues
is called, because its loop handles the token. The constructor that a dataclass generates is not:
there is nothing to read in it, and its type is in the other list.

A type is on the path if an instance goes from one module to another, as an argument or as a result.
An instance counts for the token for which it is first seen, so objects that outlive a token, such
as the worker's runner or the client's request, are not forms of the token.
"""

import asyncio
import sys
import threading
from collections import defaultdict
from types import FrameType
from typing import Any

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from rpc.transport.channel import open_channel
from scheduler_svc.config import SchedulerConfig
from tests.integration.stack import running_router, running_scheduler, running_worker, simulated

PACKAGES = ("contract", "rpc", "router", "scheduler_svc", "gpu_worker")
GENERATED = "<string>"
"""File of the code that a dataclass generates."""
NUM_WARM_TOKENS = 50
NUM_TOKENS = 100


class Trace:
    """Keeps for which tokens each module is called, and each type goes from one to another."""

    def __init__(self) -> None:
        self.token = 0
        """The number of the token whose calls are counted."""
        self.modules: defaultdict[str, set[int]] = defaultdict(set)
        self.types: defaultdict[str, set[int]] = defaultdict(set)
        self._seen: dict[int, object] = {}
        """Instances by identity; they are kept, so that no other gets the same."""

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event not in ("call", "return") or module.split(".")[0] not in PACKAGES:
            return
        if event == "call" and frame.f_code.co_filename != GENERATED:
            self.modules[module].add(self.token)
        caller = frame.f_back
        if caller is None or caller.f_globals.get("__name__") == module:
            return
        if event == "return":
            self._count(result)
        else:
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            for name in names[1:] if names[:1] == ("self",) else names:
                self._count(frame.f_locals.get(name))

    def _count(self, value: object) -> None:
        kind = type(value)
        is_ours = str(kind.__module__).split(".")[0] in (*PACKAGES, "protos")
        if is_ours and id(value) not in self._seen:
            self._seen[id(value)] = value
            self.types[f"{kind.__module__}.{kind.__qualname__}"].add(self.token)


async def main() -> None:
    trace = Trace()
    threading.setprofile(_unless_idle(trace))
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(step_ns=2_000_000)),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        params = pb.SamplingParams(max_tokens=NUM_WARM_TOKENS + 2 * NUM_TOKENS, ignore_eos=True)
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(1, 9)), sampling_params=params)
        num_tokens = 0
        async for _ in pb_grpc.InferenceServiceStub(channel).Generate(request):
            num_tokens += 1
            trace.token = num_tokens
            if num_tokens == NUM_WARM_TOKENS:
                _switch.set()
                sys.setprofile(trace)
            elif num_tokens == NUM_WARM_TOKENS + NUM_TOKENS:
                sys.setprofile(None)
                _switch.clear()
    for title, seen in (("modules", trace.modules), ("types", trace.types)):
        passed = sorted(name for name, tokens in seen.items() if 2 * len(tokens) >= NUM_TOKENS)
        print(f"{title}: {len(passed)}", *passed, sep="\n  ")


_switch = threading.Event()


def _unless_idle(trace: Trace) -> Any:
    """Returns a profile function for other threads that works while `_switch` is set."""

    def profile(frame: FrameType, event: str, result: object) -> None:
        if _switch.is_set():
            trace(frame, event, result)

    return profile


if __name__ == "__main__":
    asyncio.run(main())
