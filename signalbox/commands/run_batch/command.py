"""`signalbox run-batch`: answers the requests of a file, from a running server or its own.

Answers go to a file, everything else to standard error.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from signalbox.client.connection import PLAIN, Connection, add_connection_flags, connection
from signalbox.client.foreign_flags import add_other_names
from signalbox.commands.run import while_it_serves
from signalbox.commands.run_batch.answer_file import AnswerFile
from signalbox.commands.run_batch.batch_client import BatchClient, Progress
from signalbox.commands.run_batch.batch_file import BatchRequest, find_requests
from signalbox.llm.progress_bar import showing
from signalbox.settings.flags.parser import CommandParser
from signalbox.settings.flags.service_flags import POSITIONAL, spelling_of
from signalbox.settings.flags.service_flags import add_flags as add_service_flags
from signalbox.settings.loading import in_words_of_flags, load
from signalbox.settings.serve_settings import BatchSettings
from signalbox.stack.local_stack import running
from signalbox_contract.wording import counted
from signalbox_rpc.telemetry import logs

EXAMPLES = """\
examples
  signalbox run-batch requests.jsonl -o answers.jsonl --url http://127.0.0.1:8000/v1
  signalbox run-batch requests.jsonl -o answers.jsonl --model org/name --max-num-seqs 64
After an interruption the same command continues, and repeats failed requests. A line of the file is
  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": ...}}
With --model all flags of serve work; --help=WORD shows those that match a word.
"""
CONCURRENCY = 64
TIMEOUT_S = 3600.0
_BATCH = "batch"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox run-batch`: its own, and those of serve."""
    assert isinstance(parser, CommandParser)
    parser.conflict_handler = "resolve"  # a client's --api-key hides that of vLLM's server
    add_service_flags(parser, BatchSettings)
    parser.usage, parser.epilog = (
        "%(prog)s FILE -o FILE (--url URL | --model MODEL) [FLAG ...]",
        EXAMPLES,
    )
    for action in parser._actions:
        if action.dest == POSITIONAL and not action.option_strings:  # here a flag names the model
            action.dest, action.metavar, action.default = "file", "FILE", None
            action.help = "the requests, a line of JSON each, as in OpenAI's and vLLM's batch files"
    own = argparse.ArgumentParser(add_help=False)
    text = "the answers, a line of JSON each; requests that have one are not sent again"
    own.add_argument("-o", "--output-file", metavar="FILE", help=text)
    text = "a running server, such as http://127.0.0.1:8000/v1"
    own.add_argument("--url", metavar="URL", help=text)
    text = f"requests at a time (default {CONCURRENCY})"
    own.add_argument("--concurrency", type=int, metavar="N", default=CONCURRENCY, help=text)
    text = f"longest wait for the answer to a request, in the queue, too (default {TIMEOUT_S:g})"
    own.add_argument(
        "--request-timeout", type=float, metavar="SECONDS", default=TIMEOUT_S, help=text
    )
    own.add_argument("-i", "--input-file", metavar="FILE", help=argparse.SUPPRESS)
    add_connection_flags(own, api_key=True)
    add_other_names(own)
    group = parser.add_argument_group(_BATCH)
    for action in own._actions:
        group._add_action(action)
    model = parser._option_string_actions["--model"]
    model.metavar, model.help = "MODEL", "what to serve meanwhile, as `signalbox serve` takes it"
    group._group_actions.append(model)
    parser.set_defaults(batch_options={action.dest for action in own._actions})


def run(options: dict[str, Any]) -> None:
    """Answers the requests that have no answer yet. Raises RuntimeError if some have failed."""
    asked = {name: options.pop(name) for name in options.pop("batch_options")}
    file, output = _paths(options.pop("file"), asked)
    if asked["concurrency"] < 1:
        raise ValueError(f"--concurrency is {asked['concurrency']}; it must be at least 1")
    if not asked["request_timeout"] > 0:
        raise ValueError(f"--request-timeout is {asked['request_timeout']:g}; it must be above 0")
    url, how = asked["url"], connection(asked)
    given = sorted(options.keys() - {"debug"})
    if url and given:
        raise ValueError(f"{spelling_of(given[0])} has no effect with --url: it is the server's")
    if not url and not given:
        raise ValueError("give --url URL of a server, or --model MODEL")
    requests = find_requests(file)
    with AnswerFile(output, {one.custom_id: one.answer_id for one in requests}) as answers:
        answered = answers.resume()
        pending = [one for one in requests if one.custom_id not in answered]
        if answered:
            _tell(f"{counted(len(answered), 'request')} of {len(requests)} answered before")
        if pending:
            batch = _Batch(file, pending, answers, asked["concurrency"], asked["request_timeout"])
            _answer(batch, options, url, how)
    _tell(f"answers to {counted(len(requests), 'request')} are in {output}")


class _Batch(NamedTuple):
    """The requests of one run, and the file for their answers."""

    file: Path
    requests: Sequence[BatchRequest]
    answers: AnswerFile
    concurrency: int
    timeout_s: float

    async def answer(self, url: str, how: Connection = PLAIN) -> Progress:
        """Answers the requests behind a progress bar, on a terminal."""
        client = BatchClient(url, how, timeout_s=self.timeout_s)
        with showing(num_requests=len(self.requests), is_visible=sys.stderr.isatty()) as report:
            await client.answer_all(
                self.file,
                self.requests,
                self.answers,
                concurrency=self.concurrency,
                on_progress=lambda now: report(
                    num_finished=now.num_answered + now.num_failed,
                    num_prompt_tokens=now.num_prompt_tokens,
                    num_generated_tokens=now.num_generated_tokens,
                ),
            )
        return client.progress


def _answer(batch: _Batch, options: dict[str, Any], url: str | None, how: Connection) -> None:
    """Raises RuntimeError if a request has failed."""
    try:
        progress = asyncio.run(batch.answer(url, how) if url else _serve(options, batch))
    except KeyboardInterrupt:
        _tell("interrupted; run the same command to continue")
        raise
    if progress.num_failed:
        failed = f"{progress.num_failed} of {counted(len(batch.requests), 'request')} failed"
        raise RuntimeError(f"{failed}; their lines say why; the same command repeats them")


async def _serve(options: dict[str, Any], batch: _Batch) -> Progress:
    """Serves a model, and answers the requests meanwhile."""
    try:
        settings = load(BatchSettings, options, tell=_tell)
        if not settings.http:
            raise ValueError("requests go to the HTTP API; leave --no-http out")
        logs.configure(
            service="run-batch", level=settings.log_level, log_format=settings.log_format
        )
        async with running(settings) as stack:
            url = stack.addresses.http_url
            assert url is not None, "the HTTP API is on"
            return await while_it_serves(batch.answer(url), stack)
    except (OSError, ValueError, MemoryError) as error:
        raise RuntimeError(in_words_of_flags(str(error))) from error


def _paths(given: str | None, asked: dict[str, Any]) -> tuple[Path, Path]:
    """Returns the files of requests and of answers. Raises ValueError."""
    files = [one for one in (given, asked["input_file"]) if one]
    if len(files) != 1:
        raise ValueError("give one FILE of requests")
    if not asked["output_file"]:
        raise ValueError("give -o FILE for the answers")
    return Path(files[0]), Path(asked["output_file"])


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
