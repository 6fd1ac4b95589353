"""`signalbox models`: shows the models that a router serves, and its load."""

import argparse
import asyncio
import json
from dataclasses import asdict
from typing import Any

from rich.table import Table

from signalbox.client.connection import connection, router_client
from signalbox.client.router_flags import add_router_flags
from signalbox.client.tables import show
from signalbox.client.terminal_answer import explained
from signalbox_client import Load, Model

EXAMPLES = """\
examples
  signalbox models
  signalbox models --router gpu1:50051 --json | jq .load.num_waiting_requests
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Prints the served models and the load."""
    models, load = asyncio.run(_ask(options))
    if options["json"]:
        print(json.dumps({"models": [asdict(one) for one in models], "load": asdict(load)}))
        return
    for model in models:
        show(_table(model))
    show(_load_table(load))


async def _ask(options: dict[str, Any]) -> tuple[list[Model], Load]:
    async with router_client(options["router"], connection(options)) as client:
        with explained(client.address):
            return await client.models(), await client.load()


def _table(model: Model) -> Table:
    table = Table(show_header=False, title=model.name, title_justify="left")
    if model.state:
        table.add_row("state", model.state)
    if model.aliases:
        table.add_row("also called", ", ".join(model.aliases))
    if model.adapters:
        table.add_row("adapters", ", ".join(model.adapters))
    table.add_row("task", model.task)
    if not model.dtype:
        table.add_row("architecture", model.architecture)
        table.add_row("window", f"{model.max_model_len:,} tokens")
        return table
    table.add_row("architecture", f"{model.architecture}, {model.dtype}")
    table.add_row("window", _window(model))
    table.add_row("vocabulary", f"{model.vocab_size:,} tokens")
    if model.task == "generate":
        table.add_row("chat template", "yes" if model.has_chat_template else "no")
        table.add_row("defaults", _defaults(model))
    else:
        table.add_row(
            "classes" if model.task == "classify" else "elements", f"{model.num_outputs:,}"
        )
    if model.dimensions:
        table.add_row("dimensions", ", ".join(map(str, model.dimensions)))
    if model.prompts:
        table.add_row("prompts", ", ".join(model.prompts))
    return table


def _load_table(load: Load) -> Table:
    table = Table(show_header=False, title="load", title_justify="left")
    table.add_row("workers", str(load.num_workers))
    live, most = load.num_live_requests, load.max_live_requests
    table.add_row("live requests", f"{live:,} of {most:,} here")
    waiting, running = load.num_waiting_requests, load.num_running_requests
    swapped = load.num_swapped_requests
    table.add_row("requests", f"{waiting:,} waiting, {running:,} running, {swapped:,} swapped")
    used, total = load.num_used_kv_blocks, load.num_kv_blocks
    table.add_row("KV cache", f"{used:,} of {total:,} blocks")
    return table


def _defaults(model: Model) -> str:
    """Returns the defaults of a request that sets no parameters, and their sources."""
    defaults = model.default_sampling_params
    if defaults is None:
        return "not told by this server"
    values = [
        f"{name} {value:g}"
        for name, value in asdict(defaults).items()
        if isinstance(value, int | float) and name != "max_tokens"
    ]
    if defaults.max_tokens is not None:
        values.append(f"max_tokens {defaults.max_tokens:,}")
    sources = [("the model", defaults.from_model), ("the server's start", defaults.from_override)]
    told = [f"{', '.join(names)} by {source}" for source, names in sources if names]
    return ", ".join(values) + (f" ({'; '.join(told)})" if told else "")


def _window(model: Model) -> str:
    if model.effective_max_model_len < model.max_model_len:
        fits, whole = model.effective_max_model_len, model.max_model_len
        return f"{fits:,} tokens in the KV cache, of {whole:,}"
    return f"{model.max_model_len:,} tokens"
