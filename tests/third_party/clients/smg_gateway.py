"""As a gateway on vLLM's gRPC: text, usage, finish reason, stream order, `BadRequestError`."""

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import openai
from demo import ANSWER, BAD_TEMPERATURE, COMPLETION_TOKENS, GRPC, MESSAGES, MODEL, PROMPT_TOKENS

STARTS_S = 300


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check(client: openai.OpenAI) -> None:
    greedy = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 24}
    whole = until_routed(lambda: client.chat.completions.create(**greedy))
    (choice,) = whole.choices
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert whole.usage.prompt_tokens == PROMPT_TOKENS
    assert whole.usage.completion_tokens == COMPLETION_TOKENS

    chunks = list(client.chat.completions.create(**greedy, stream=True))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == ANSWER
    assert choices[-1].finish_reason == "stop"

    try:
        client.chat.completions.create(**greedy | {"temperature": BAD_TEMPERATURE})
    except openai.BadRequestError as error:
        assert "temperature" in error.message
    else:
        raise AssertionError("a temperature of 9 is taken")


def until_routed(ask):
    """Repeats a call until the gateway listens and knows the model."""
    ends = time.monotonic() + STARTS_S
    while True:
        try:
            return ask()
        except (openai.APIConnectionError, openai.InternalServerError, openai.NotFoundError):
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


port, metrics_port = free_port(), free_port()
options = ["--worker-urls", f"grpc://{GRPC}", "--host", "127.0.0.1", "--port", str(port)]
options += ["--prometheus-port", str(metrics_port)]
with tempfile.TemporaryFile() as log:
    smg = Path(sys.executable).with_name("smg")
    gateway = subprocess.Popen([smg, "launch", *options], stdout=log, stderr=log)
    try:
        check(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0))
    except BaseException:
        log.seek(0)
        print(log.read().decode()[-4000:])
        raise
    finally:
        gateway.kill()
        gateway.wait()
