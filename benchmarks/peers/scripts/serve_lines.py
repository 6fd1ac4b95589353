"""Lets a library be asked from outside: a line of JSON in, a line of JSON out, over loopback.

Runs in the peer's own interpreter, so it needs nothing but the standard library.
"""

import argparse
import json
import socket
import time
from collections.abc import Callable

Generate = Callable[[list[list[int]], int], tuple[list[int], int | None]]
"""Takes prompts and the tokens to generate for each; returns how many each got, and how many tokens
of all prompts were found in a prefix cache, if the library tells."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--num-threads", type=int, required=True)
    parser.add_argument("--options", default="{}", help="of the library, as JSON")
    return parser.parse_args()


def serve(port: int, generate: Generate) -> None:
    """Answers for ever; the time is that of `generate` alone."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                for line in lines:
                    lines.write(json.dumps(_answer(json.loads(line), generate)) + "\n")
                    lines.flush()


def _answer(asked: dict, generate: Generate) -> dict:
    start = time.perf_counter()
    num_tokens, num_found = generate(asked["prompts"], asked["max_tokens"])
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "num_tokens": num_tokens, "num_found": num_found}
