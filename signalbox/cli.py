"""The command line. Errors are one line on standard error and a status that is not 0."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import signalbox
from rpc import logs
from signalbox import (
    chat,
    doctor,
    dump,
    explain,
    generate,
    health,
    keys,
    models,
    profile,
    replay,
    services,
    tokenize,
    top,
)
from signalbox.bench import command as bench
from signalbox.configs import in_words_of_flags
from signalbox.flags import add_flags
from signalbox.processes import end_with_parent, process_name
from signalbox.settings import (
    ENV_PREFIX,
    DemoSettings,
    RouterSettings,
    SchedulerSettings,
    ServeSettings,
    Settings,
    WorkerSettings,
    load,
)
from signalbox.trace import command as trace

DESCRIPTION = """\
Serves a large language model over gRPC and OpenAI's HTTP API: a router (text), a
scheduler (tokens and KV-cache blocks) and workers (tensors), each a process of its own.

  on one machine
    signalbox serve models/SmolLM2-135M-Instruct.Q4_1.gguf
    signalbox chat "What is the capital of France?"

  on several
    signalbox scheduler --host 0.0.0.0                           on host a, port 50052
    signalbox worker MODEL --host 0.0.0.0 --scheduler a:50052    on host b, and others
    signalbox router --host 0.0.0.0 --scheduler a:50052          clients use ports 50051 and 8000
    each with --tls-cert, --tls-key, --tls-ca, --tls-client-ca, or --insecure in a trusted network

  without a model
    signalbox serve --simulate
"""
EPILOG = f"""\
Each flag of serve, router, scheduler and worker can also be set in the environment
(--max-num-seqs as {ENV_PREFIX}MAX_NUM_SEQS) or in a YAML file given as --config
(max_num_seqs: 64). A flag beats the environment, which beats the file.
"""

_SERVICES: dict[str, tuple[str, type[Settings], Callable[[Any], None]]] = {
    "serve": ("router, scheduler and workers on this machine", ServeSettings, services.run_stack),
    "demo": ("a stack, asks it one question and ends it", DemoSettings, services.run_demo),
    "router": ("the router alone", RouterSettings, services.run_router),
    "scheduler": ("the scheduler alone", SchedulerSettings, services.run_scheduler),
    "worker": ("one worker alone", WorkerSettings, services.run_worker),
}
_OUR_PACKAGES = ("rpc", "router", "scheduler_svc", "gpu_worker", "signalbox_kernels", "signalbox")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    end_with_parent()
    options = vars(_parser().parse_args(arguments))
    command, run = options.pop("command"), options.pop("run")
    debug = bool(options.get("debug")) or _debug_in_environment()
    try:
        run(options)
    except KeyboardInterrupt:
        logging.shutdown()
        os._exit(130)  # a worker that was interrupted while it loads has threads in native code
    except BrokenPipeError:  # such as `signalbox generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        text = _in_one_line(error)
        text = in_words_of_flags(text) if command in _SERVICES else text
        print(f"signalbox {process_name(command)}: {text}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="signalbox",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=signalbox.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (summary, settings_class, run) in _SERVICES.items():
        command = commands.add_parser(name, help=summary, description=f"Runs {summary}.")
        add_flags(command, settings_class)
        command.set_defaults(run=_with_settings(name, settings_class, run))
    _add_clients(commands)
    _add_questions(commands)
    command = commands.add_parser("keys", help="make an API key for clients of the router")
    keys.add_flags(command)
    command.set_defaults(run=keys.run)
    return parser


def _add_clients(commands: Any) -> None:
    """Adds the commands that call a running router."""
    for name, summary, module in (
        ("generate", "continue a prompt, streamed from a running router", generate),
        ("chat", "answer a message, or hold a conversation", chat),
        ("tokenize", "turn text into tokens, or token ids into text", tokenize),
        ("bench", "load a router or an OpenAI endpoint, and measure", bench),
        ("models", "say what a router serves, and how busy it is", models),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=f"To {summary}.",
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_flags(command)
        command.set_defaults(run=module.run)


def _add_questions(commands: Any) -> None:
    """Adds the commands that only look."""
    for name, summary, module in (
        ("health", "whether a router, scheduler or worker is serving, as exit status", health),
        ("doctor", "what this machine offers, what will be used, what is amiss", doctor),
        ("top", "what a scheduler and its workers are doing, live", top),
        ("explain", "what happened to one request, and why it took so long", explain),
        ("trace", "where one request's time went, as a drawing of its spans", trace),
        ("profile", "what a worker's steps and memory are spent on", profile),
        ("dump", "what a scheduler holds: queues, sequences, blocks, steps in flight", dump),
        ("replay", "whether a recorded scheduler's decisions come out the same again", replay),
    ):
        command = commands.add_parser(name, help=summary, description=f"Says {summary}.")
        module.add_flags(command)
        command.set_defaults(run=module.run)


def _with_settings(
    name: str, settings_class: type[Settings], run: Callable[[Any], None]
) -> Callable[[dict[str, Any]], None]:
    def load_and_run(flags: dict[str, Any]) -> None:
        settings = load(settings_class, flags)
        _configure_logging(name, settings)
        run(settings)

    return load_and_run


def _configure_logging(command: str, settings: Settings) -> None:
    """Sends log lines to standard error, each with the process's name."""
    name = process_name("signalbox" if command == "serve" else command)
    logs.configure(service=name, level=settings.log_level, log_format=settings.log_format)


def _debug_in_environment() -> bool:
    return os.environ.get(ENV_PREFIX + "DEBUG", "").lower() in ("1", "true", "yes", "on")


def _in_one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    is_ours = type(error).__module__.split(".")[0] in _OUR_PACKAGES
    is_expected = isinstance(error, OSError | ValueError | RuntimeError | MemoryError)
    if text and (is_ours or is_expected):
        return text
    return f"{type(error).__name__} {text} ({ENV_PREFIX}DEBUG=1 shows where)"


if __name__ == "__main__":
    sys.exit(main())
