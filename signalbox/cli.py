"""The command line. An error is one line on standard error and a non-zero exit status.

A command's code is imported when that command is parsed, because a container's health probe starts
every few seconds and needs little of it.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from signalbox.commands.foreign_commands import POINTERS, as_ours
from signalbox.settings.environment import (
    CLIENT_VARIABLES,
    ENV_PREFIX,
    OTHER_VARIABLES,
    own_variables,
)
from signalbox.settings.flags.parser import CommandParser
from signalbox.stack.processes.child_processes import process_name
from signalbox.version import VERSION
from signalbox_rpc.lifetime.parent import leave

if TYPE_CHECKING:
    from signalbox_rpc.settings.service_settings import Settings

DESCRIPTION = """\
Serves a large language model over gRPC and OpenAI's HTTP API: a router (text),
a scheduler (tokens and KV-cache blocks) and workers (tensors), each a process.

  on one machine
    signalbox serve models/SmolLM2-135M-Instruct.Q4_1.gguf --dtype int16
    signalbox chat "What is the capital of South Korea?"
  or both in one
    signalbox run models/SmolLM2-135M-Instruct.Q4_1.gguf "Hello"

  on several
    signalbox scheduler --host 0.0.0.0                  on host a, port 50052
    signalbox worker MODEL --host 0.0.0.0 --scheduler a:50052     on host b, ...
    signalbox router --host 0.0.0.0 --scheduler a:50052     ports 50051 and 8000
    each with --tls-cert, --tls-key, --tls-ca and --tls-client-ca, or with
    --insecure in a trusted network

  without a model
    signalbox serve --simulate
"""
EPILOG = f"""\
Each flag of serve, router, scheduler and worker can also be set in the
environment (--max-num-seqs as {ENV_PREFIX}MAX_NUM_SEQS) or in a YAML file given
as --config (max_num_seqs: 64). A flag beats the environment, which beats the
file.
"""

_SERVICES = {
    "serve": "run router, scheduler and workers on this machine",
    "demo": "run a whole stack, ask it one question, and stop it",
    "router": "run the router alone",
    "scheduler": "run the scheduler alone",
    "worker": "run one worker alone",
}
_CLIENTS = {
    "run": "serve a model, chat with it, and stop the server",
    "generate": "continue a prompt, streamed from a running router",
    "chat": "answer a message, or hold a conversation",
    "embed": "print the vectors of texts, as lines of JSON",
    "run-batch": "answer the requests of a file, from a server or a model of its own",
    "tokenize": "turn text into tokens, or token ids into text",
    "bench": "put a load on a router or an OpenAI endpoint, and measure",
    "models": "show what a router serves, and its load",
    "ps": "show which models of a router are loaded, and what each takes",
    "load": "have a server load one of its models before a request names it",
    "unload": "have a server end one of its models, which the next request for it loads again",
    "keys": "make, list and revoke API keys for clients of the router",
    "drain": "let a worker leave, and hand its requests over to others",
    "pull": "fetch a model from the hub into the cache",
    "list": "list the models in the hub's cache, with their sizes",
    "rm": "remove models from the hub's cache",
    "cache": "list or clear the KV blocks that workers keep on a disk or a server",
}
"""Commands that call a running service, or prepare calls."""
_QUESTIONS = {
    "open": "open the console, a web page of a router, in the browser",
    "health": "tell by the exit status whether a router, scheduler or worker is serving",
    "doctor": "show what this machine offers, what will be used, and what is wrong",
    "config": "show the settings of a command and their sources, or check a file of settings",
    "completion": "print a script that completes commands and flags in bash, zsh or fish",
    "top": "show what a scheduler and its workers do, live",
    "explain": "show what happened to one request, and why it took so long",
    "trace": "write the spans of requests as a file for ui.perfetto.dev",
    "profile": "record a worker's steps, and show which operations took the time, or the memory",
    "dump": "write what a scheduler holds: queues, sequences, blocks, steps in flight",
    "replay": "make a recorded scheduler's decisions again, and compare them",
    "verify": "compute what a receipt says again, and compare the tokens",
}
"""Commands that change nothing."""
_MODULES = {
    "run": "signalbox.commands.run",
    "generate": "signalbox.commands.generate",
    "chat": "signalbox.commands.chat",
    "embed": "signalbox.commands.embed",
    "run-batch": "signalbox.commands.run_batch.command",
    "tokenize": "signalbox.commands.tokenize",
    "bench": "signalbox.bench.command",
    "models": "signalbox.commands.models",
    "ps": "signalbox.commands.launched_models.ps",
    "load": "signalbox.commands.launched_models.load",
    "unload": "signalbox.commands.launched_models.unload",
    "keys": "signalbox.commands.keys",
    "drain": "signalbox.commands.drain",
    "pull": "signalbox.commands.cached_models.pull",
    "list": "signalbox.commands.cached_models.list",
    "rm": "signalbox.commands.cached_models.rm",
    "cache": "signalbox.commands.cache",
    "open": "signalbox.commands.open",
    "health": "signalbox.commands.health",
    "doctor": "signalbox.commands.inspect.doctor",
    "config": "signalbox.commands.config",
    "completion": "signalbox.commands.completion",
    "top": "signalbox.commands.inspect.top",
    "explain": "signalbox.commands.inspect.explain",
    "trace": "signalbox.commands.inspect.trace",
    "profile": "signalbox.commands.inspect.profile",
    "dump": "signalbox.commands.inspect.dump",
    "replay": "signalbox.commands.inspect.replay",
    "verify": "signalbox.commands.inspect.verify",
}
"""Module of each of these commands, with `add_flags` and `run`."""
_OUR_PACKAGES = (
    "signalbox_contract",
    "signalbox_rpc",
    "signalbox_router",
    "signalbox_scheduler",
    "signalbox_worker",
    "signalbox_kernels",
    "signalbox",
)
_NO_WORKER = (
    "this installation holds no code of workers, as the images of router and scheduler do not; "
    "use the image gpu-worker, or install signalbox-serving"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    return run(parse(arguments))


def parse(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the parsed command line. Ends the process if it is invalid."""
    given = as_ours(sys.argv[1:] if arguments is None else arguments)
    parser = make_parser()
    if not given:
        print(parser.format_help(), end="", file=sys.stderr)
        raise SystemExit(2)
    try:
        return vars(parser.parse_args(given))
    except BrokenPipeError:  # such as `signalbox serve --help=all | head`
        _discard_output()
        raise SystemExit(1) from None
    except ImportError as error:  # the flags of some commands are code of the worker
        if not _lacks_worker(error):
            raise
        print(f"signalbox {given[0]}: {_NO_WORKER}", file=sys.stderr)
        raise SystemExit(1) from None


def run(options: dict[str, Any]) -> int:
    """Runs the result of `parse`; returns the exit status."""
    command, run_command = options.pop("command"), options.pop("run")
    debug = bool(options.get("debug")) or _debug_in_environment()
    try:
        if command in _CLIENTS or (command in _QUESTIONS and command != "health"):
            _check_environment()
        run_command(options)
    except KeyboardInterrupt:
        logging.shutdown()
        leave(130)  # a worker that was interrupted while it loads has threads in native code
    except BrokenPipeError:  # such as `signalbox generate ... | head`
        _discard_output()
        return 1
    except Exception as error:
        if debug:
            raise
        text = _in_one_line(error)
        if command in _SERVICES:
            from signalbox.settings.loading import in_words_of_flags

            text = in_words_of_flags(text)
        print(f"signalbox {process_name(command)}: {text}", file=sys.stderr)
        return 1
    return 0


def _discard_output() -> None:
    """Lets what is still in the buffer of standard output go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_parser() -> CommandParser:
    """Returns the parser of all commands; each adds its flags when it is asked for."""
    parser = CommandParser(
        prog="signalbox",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-v", "--version", action="version", version=VERSION)
    parser.remedies |= POINTERS
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for summaries, fill in (
        (_SERVICES, _fill_service),
        (_CLIENTS, _fill_client),
        (_QUESTIONS, _fill_client),
    ):
        for name, summary in summaries.items():
            text = f"{summary[0].upper()}{summary[1:]}."
            command = commands.add_parser(
                name, help=summary, description=text, fill=partial(fill, name)
            )
            command.root, command.siblings = parser, commands.choices
    return parser


def _fill_service(name: str, parser: argparse.ArgumentParser) -> None:
    from signalbox.settings.flags.service_flags import add_flags
    from signalbox.settings.loading import load
    from signalbox.stack.service_runner import service
    from signalbox_rpc.limits.open_files import raise_open_files_limit

    settings_class, run = service(name)

    def load_and_run(flags: dict[str, Any]) -> None:
        notices: list[str] = []
        settings = load(settings_class, flags, tell=notices.append)
        _configure_logging(name, settings)
        raise_open_files_limit()
        for notice in notices:
            logging.getLogger(__name__).warning("%s", notice)
        run(settings)

    add_flags(parser, settings_class)
    parser.set_defaults(run=load_and_run)


def _fill_client(name: str, parser: argparse.ArgumentParser) -> None:
    module = import_module(_MODULES[name])
    if hasattr(module, "EXAMPLES"):
        parser.epilog = module.EXAMPLES
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_flags(parser)
    parser.set_defaults(run=module.run)


def _configure_logging(command: str, settings: "Settings") -> None:
    """Sends log lines to standard error, each with the process's name."""
    from signalbox_rpc.telemetry import logs

    name = process_name("signalbox" if command == "serve" else command)
    logs.configure(service=name, level=settings.log_level, log_format=settings.log_format)


def _check_environment() -> None:
    """Refuses variables that nothing reads. Settings are imported only if there are candidates."""
    if own_variables(os.environ.items()).keys() - CLIENT_VARIABLES - OTHER_VARIABLES:
        from signalbox.settings.loading import check_environment

        check_environment()


def _debug_in_environment() -> bool:
    return os.environ.get(ENV_PREFIX + "DEBUG", "").lower() in ("1", "true", "yes", "on")


def _lacks_worker(error: Exception) -> bool:
    name = error.name if isinstance(error, ImportError) else None  # a module, or one of its names
    return (name or "").partition(".")[0] in ("signalbox_worker", "signalbox_kernels")


def _in_one_line(error: Exception) -> str:
    from signalbox_rpc.telemetry.printable import printable

    if _lacks_worker(error):
        return _NO_WORKER
    text = printable(" ".join(str(error).split()))
    is_ours = type(error).__module__.split(".")[0] in _OUR_PACKAGES
    is_expected = isinstance(error, OSError | ValueError | RuntimeError | MemoryError)
    if text and (is_ours or is_expected):
        return text
    return f"{type(error).__name__} {text} ({ENV_PREFIX}DEBUG=1 shows where)"


if __name__ == "__main__":
    sys.exit(main())
