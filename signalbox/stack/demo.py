"""`signalbox demo`: starts the stack, asks one question over the public API, and stops it."""

import asyncio
import sys

from signalbox.client.connection import Connection, router_client
from signalbox.client.terminal_answer import show
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import LocalStack, serving

QUESTION = "What is the capital of South Korea?"
MAX_TOKENS = 64


def run(settings: ServeSettings, *, fork: bool) -> None:
    """Prints progress, the answer as it streams, and a summary."""
    _say("Starting router, scheduler and worker")
    stack = LocalStack(settings)
    stack.launch(fork=fork)
    asyncio.run(_ask(stack, settings))
    _say("All processes have ended")


async def _ask(stack: LocalStack, settings: ServeSettings) -> None:
    async with serving(stack):
        processes = ", ".join(f"{name} {pid}" for name, pid in stack.pids.items())
        _say(f"Serving at {stack.addresses.router} (processes: {processes})")
        _say(f"Asking: {QUESTION}\n")
        keys = [key.get_secret_value() for key in settings.api_key]
        how = Connection(api_key=keys[0] if keys else None)
        async with router_client(stack.addresses.router, how) as client:
            stream = client.stream_chat(QUESTION, temperature=0.0, max_tokens=MAX_TOKENS)
            await show(stream, address=client.address, as_json=False)
        _say("\nShutting down")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
