"""Runs each client of another project against live stacks.

One serves the demo model, one a model that calls tools, and two serve models that pool. A client is
a script of `clients/` that asserts the contents of what it gets. It runs in one of the environments
of `.venv-clients`, with Node's modules, some in Debian's Chromium, or with Debian's Ruby, so that
its dependencies never meet ours. `--write-docs` writes the table of docs/reference/clients.md;
without it the table must be the one that is there, so that a client which stops working fails the
run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.signalbox.stacks import environment, serve
from tests.third_party.pooled_models import save_pooled_models
from tests.third_party.scripted_model import serving_scripted_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENTS = HERE / "environments"
PAGE = ROOT / "docs" / "reference" / "clients.md"
MARKER = "<!-- The table below is generated: make test-clients CLIENTS=--write-docs -->\n"
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
COMMON = "common"
RUBY_VERSION = "1.51 (Debian 12)"
LIMIT_S = 600
"""Seconds that a script may take; a client that waits for ever fails."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client and the script that uses it."""

    package: str
    script: str
    environment: str = COMMON
    """Of a Python client: its file in environments/, without the suffix."""

    @property
    def path(self) -> Path:
        return HERE / "clients" / self.script

    def version(self) -> str:
        """Returns the version that the client's environment pins."""
        if self.path.suffix == ".rb":
            return RUBY_VERSION
        if self.path.suffix == ".mjs":
            package = json.loads((HERE / "package.json").read_text(encoding="utf-8"))
            return str(package["dependencies"][self.package])
        pins = (ENVIRONMENTS / f"{self.environment}.txt").read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(self.package)}==(\S+)", pins, re.MULTILINE)
        assert found, f"{self.package} is not pinned"
        return found[1]

    def asserts(self) -> str:
        """Returns what the script's first line says it asserts."""
        first = self.path.read_text(encoding="utf-8").partition("\n")[0]
        return first.strip('"/# ').rstrip(".")

    def command(self) -> list[str | Path]:
        """Returns the program that runs the script, and the script."""
        python = ROOT / ".venv-clients" / self.environment / "bin" / "python"
        program = {".mjs": "node", ".rb": "ruby"}.get(self.path.suffix, python)
        return [program, self.path]


CLIENTS = (
    Client("openai", "openai_sdk.py"),
    Client("litellm", "litellm_sdk.py", "litellm"),
    Client("litellm", "litellm_tools.py", "litellm"),
    Client("langchain-openai", "langchain_openai_chat.py"),
    Client("llama-index-llms-openai-like", "llama_index_openai_like.py"),
    Client("langchain-openai", "langchain_openai_embeddings.py"),
    Client("llama-index-embeddings-openai-like", "llama_index_embeddings.py"),
    Client("llama-index-postprocessor-cohere-rerank", "llama_index_rerank.py"),
    Client("cohere", "cohere_sdk.py"),
    Client("cohere", "cohere_sdk.py", "cohere"),
    Client("instructor", "instructor_models.py"),
    Client("pydantic-ai-slim", "pydantic_ai_agent.py"),
    Client("anthropic", "anthropic_sdk.py", "agents"),
    Client("openai-agents", "openai_agents.py", "agents"),
    Client("smolagents", "smolagents_loop.py", "agents"),
    Client("pydantic-ai-slim", "pydantic_ai_tools.py", "pydantic-ai"),
    Client("instructor", "instructor_agents.py", "agents"),
    Client("langchain-openai", "langchain_tools.py"),
    Client("llama-index-llms-openai-like", "llama_index_tools.py"),
    Client("openai", "openai_responses.py", "agents"),
    Client("openai", "openai_stored_responses.py", "agents"),
    Client("smg", "smg_gateway.py"),
    Client("schemathesis", "schemathesis_openapi.py"),
    Client("openai", "openai_sdk.py", "inspect-ai"),
    Client("inspect-ai", "inspect_ai_eval.py", "inspect-ai"),
    Client("lm-eval", "lm_eval_tasks.py", "lm-eval"),
    Client("guidellm", "guidellm_run.py", "guidellm"),
    Client("aiperf", "aiperf_profile.py", "aiperf"),
    Client("ai", "ai_sdk.mjs"),
    Client("@anthropic-ai/sdk", "anthropic_node.mjs"),
    Client("@grpc/grpc-js", "grpc_js.mjs"),
    Client("@connectrpc/connect-node", "connect_node.mjs"),
    Client("@connectrpc/connect-web", "connect_web.mjs"),
    Client("grpc-web", "grpc_web.mjs"),
    Client("connectrpc", "connectrpc_python.py", "connect"),
    Client("ruby-grpc", "ruby_grpc.rb"),
)


def run(client: Client, variables: dict[str, str]) -> str:
    """Runs a client's script in a folder of its own; returns why it failed, or an empty text."""
    with tempfile.TemporaryDirectory() as folder:
        return _run_in(folder, client, variables)


def _run_in(folder: str, client: Client, variables: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            client.command(),
            cwd=folder,
            env={**_environment(), **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"{done.stdout}{done.stderr}".strip() or "failed"


def _environment() -> dict[str, str]:
    """Ours without our own packages and without a proxy, which cannot reach the stack."""
    kept = environment()
    return {
        name: value
        for name, value in kept.items()
        if name != "PYTHONPATH" and "proxy" not in name.lower()
    }


def run_all() -> dict[Client, str]:
    """Returns why each client failed; an empty text for one that passed."""
    reasons: dict[Client, str] = {}
    with _serving() as variables:
        for client in CLIENTS:
            started = time.monotonic()
            reasons[client] = run(client, variables)
            outcome = "failed" if reasons[client] else "passed"
            took = f"{time.monotonic() - started:.0f} s"
            print(f"{client.package} {client.version()}: {outcome} in {took}", flush=True)
            if reasons[client]:
                print(reasons[client], flush=True)
    return reasons


@contextmanager
def _serving() -> Iterator[dict[str, str]]:
    """Serves the models; yields the variables by which scripts find them."""
    cpu = ("--device=cpu", "--kv-cache-memory", "0.25")
    pooled = (*cpu, "--served-model-name", "pooled")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder, reranker, expected = save_pooled_models(folder)
        with (
            serve(
                folder / "log", MODEL, *cpu, "--allowed-origins=*", "--max-model-len=2048"
            ) as stack,
            serve(folder / "encoder.log", str(encoder), *pooled) as embeds,
            serve(folder / "reranker.log", str(reranker), *pooled) as scores,
            serving_scripted_model() as scripted,
        ):
            yield {
                "SIGNALBOX_ROUTER": stack.address,
                "SIGNALBOX_HTTP": stack.http_url(),
                "SIGNALBOX_ENCODER_HTTP": embeds.http_url(),
                "SIGNALBOX_RERANKER_HTTP": scores.http_url(),
                "SIGNALBOX_POOLED": str(expected),
                "SIGNALBOX_SCRIPTED_HTTP": scripted,
            }


def table(reasons: dict[Client, str]) -> str:
    """Returns the table of docs/reference/clients.md."""
    rows = [
        f"| {client.package} | {client.version()} | {client.asserts()} |"
        f" {'failed' if reason else 'passed'} |\n"
        for client, reason in reasons.items()
    ]
    return "| client | version | asserted | result |\n|---|---|---|---|\n" + "".join(rows)


def main() -> int:
    """Returns the exit status: 1 if a client failed or the page shows another table."""
    os.chdir(ROOT)
    reasons = run_all()
    head, _, written = PAGE.read_text(encoding="utf-8").partition(MARKER)
    found = "\n" + table(reasons)
    num_failed = sum(bool(reason) for reason in reasons.values())
    is_stale = written != found
    if "--write-docs" in sys.argv[1:]:
        PAGE.write_text(f"{head}{MARKER}{found}", encoding="utf-8")
    elif is_stale:
        print(f"{PAGE.relative_to(ROOT)} differs: make test-clients CLIENTS=--write-docs")
    print(table(reasons))
    print(f"{len(reasons) - num_failed} passed, {num_failed} failed")
    return int(num_failed > 0 or (is_stale and "--write-docs" not in sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
