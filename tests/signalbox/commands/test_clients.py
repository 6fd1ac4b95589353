"""The commands that call a router: as scripts use them, and a conversation on a terminal."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from signalbox.bench import flags as bench
from signalbox.cli import make_parser
from signalbox.commands import chat, embed, generate, models, tokenize
from signalbox.commands.chat import COMMANDS, ChatSession, obey
from tests.signalbox.stacks import COMMAND, Stack, environment, run_here, serve, signalbox
from tests.waiting import EVENT_S, wait_until


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    slow = ("--simulated-step-ms", "20")
    defaults = ("--override-generation-config", '{"temperature": 0.5, "max_new_tokens": 6}')
    log = tmp_path_factory.mktemp("stack") / "log"
    names = ("--served-model-name", "simulated", "spare")
    with serve(log, "--simulate", *slow, *defaults, *names) as stack:
        yield stack


def test_tokens_and_text_are_each_others_inverse(stack: Stack) -> None:
    at = ("--router", stack.address)
    done = run_here("tokenize", "--json", "The capital", *at)
    tokens = json.loads(done.stdout)
    assert tokens["count"] == len(tokens["token_ids"]) == len(tokens["texts"]) > 0
    ids = [str(token_id) for token_id in tokens["token_ids"]]
    done = run_here("tokenize", "--decode", "--no-special-tokens", *ids, *at)
    assert done.stdout == "The capital\n"


def test_tokens_are_a_table_for_people(stack: Stack) -> None:
    done = run_here("tokenize", "Hi", "--router", stack.address)
    assert {"position", "id", "text"} <= set(re.findall(r"\w+", done.stdout.splitlines()[2]))


@pytest.mark.parametrize("word", ["x", "-1", "1.5", str(1 << 32)])
def test_what_is_no_token_id_is_refused_before_anybody_is_called(word: str) -> None:
    done = run_here("tokenize", "--router", "127.0.0.1:9", "--decode", "--", "5", word)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"'{word}' is no token id" in done.stderr


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--router", "http://127.0.0.1:9"), "'http://127.0.0.1:9' is no HOST:PORT"),
        (("--router", "localhost"), "'localhost' is no HOST:PORT"),
        (("--router", ""), "'' is no HOST:PORT"),
        (("--timeout", "inf"), "--timeout is inf"),
        (("--timeout", "0"), "--timeout is 0"),
        (("--max-tokens", str(1 << 40)), "max_tokens"),
        (("--api-key", "a\nb"), "api_key"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(flags: tuple[str, str], expected: str) -> None:
    done = run_here("generate", "a", *flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("piped", ["", " \n"])
def test_an_empty_message_is_refused_before_a_router_is_called(
    piped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    for given in ([], [piped]):
        done = run_here("chat", *given, "--router", "127.0.0.1:9")
        assert (done.returncode, done.stdout) == (1, "")
        assert "the message is empty" in done.stderr


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_what_is_piped_goes_before_the_message(
    command: str, stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "piped").write_text("A text.\n")

    def num_prompt_tokens(*message: str, piped: bool = False) -> int:
        with (tmp_path / "piped" if piped else Path(os.devnull)).open() as source:
            monkeypatch.setattr("sys.stdin", source)
            done = run_here(command, *message, "--json", "--router", stack.address)
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["usage"]["prompt_tokens"])

    whole = num_prompt_tokens("A text.\n\nHi")
    assert num_prompt_tokens("Hi", piped=True) == whole > num_prompt_tokens("Hi")
    assert num_prompt_tokens("A text.") <= num_prompt_tokens(piped=True) < whole


def test_models_say_what_is_served_and_how_busy_it_is(stack: Stack) -> None:
    done = run_here("models", "--json", "--router", stack.address)
    answer = json.loads(done.stdout)
    (model,) = answer["models"]
    assert (model["name"], model["aliases"]) == ("simulated", ["spare"])
    assert answer["load"]["num_workers"] == 1
    assert 0 == answer["load"]["num_live_requests"] < answer["load"]["max_live_requests"]
    table = run_here("models", "--router", stack.address).stdout
    assert "0 waiting, 0 running, 0 swapped" in table
    assert re.search(r"also called\W+spare", table)


def test_the_servers_defaults_bound_what_asks_for_nothing_and_are_told(stack: Stack) -> None:
    at = ("--ignore-eos", "--json", "--router", stack.address)
    (model,) = json.loads(run_here("models", "--json", "--router", stack.address).stdout)["models"]
    told = model["default_sampling_params"]
    assert (told["temperature"], told["max_tokens"], told["top_p"]) == (0.5, 6, 1.0)
    assert told["from_override"] == ["max_tokens", "temperature"]
    table = run_here("models", "--router", stack.address).stdout
    assert "max_tokens 6" in " ".join(table.replace("│", " ").split())
    generated, chatted = run_here("generate", "a", *at), run_here("chat", "a", *at)
    for done in (generated, chatted):
        assert json.loads(done.stdout)["usage"]["completion_tokens"] == 6
    assert "temperature 0.5 (the server's defaults), at most 6 tokens" in chatted.stderr
    assert "ended at 6 tokens; --max-tokens allows more" in chatted.stderr
    longer = run_here("chat", "a", "--max-tokens", "9", *at)
    assert json.loads(longer.stdout)["usage"]["completion_tokens"] == 9
    assert "at most" not in longer.stderr and "ended" not in longer.stderr


def test_a_schema_that_cannot_be_read_is_refused_by_its_flag(tmp_path: Path) -> None:
    done = run_here("generate", "a", "--json-schema", str(tmp_path / "none"))
    assert done.returncode == 1
    assert "cannot read --json-schema" in done.stderr
    assert len(done.stderr.splitlines()) == 1


AGAIN_S = 0.5
"""Seconds without output after which Ctrl-C is pressed again."""


class Terminal:
    """`signalbox chat` as a person has it."""

    def __init__(self, *arguments: str) -> None:
        self._end, other = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, "chat", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment(),
            preexec_fn=os.setsid,
        )
        os.close(other)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode() + b"\n")

    def wait_for(self, text: str) -> str:
        """Returns all that is shown up to the text."""
        ends = time.monotonic() + EVENT_S
        while text not in self.shown:
            assert time.monotonic() < ends, self.shown
            self.shown += os.read(self._end, 4096).decode(errors="replace")
        before, _, self.shown = self.shown.partition(text)
        return before

    def interrupt_until(self, text: str) -> None:
        """Sends SIGINT until the text is shown, as a person presses Ctrl-C again.

        A signal that comes between readline's prompt and its wait for a key is seen with the key.
        """
        ends = time.monotonic() + EVENT_S
        while text not in self.shown:
            assert time.monotonic() < ends, self.shown
            self.process.send_signal(signal.SIGINT)
            while select.select([self._end], [], [], AGAIN_S)[0]:
                self.shown += os.read(self._end, 4096).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


def test_a_conversation_goes_on_after_an_answer_is_interrupted(stack: Stack) -> None:
    terminal = Terminal("--router", stack.address, "--ignore-eos", "--max-tokens", "400")
    try:
        terminal.wait_for("> ")
        terminal.type("Hello")
        terminal.wait_for("Hello\r\n")  # what the terminal echoes
        terminal.wait_for(" ")  # the first words of an answer of 400 tokens
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("the conversation keeps this part of the answer")
        terminal.wait_for("> ")
        terminal.interrupt_until("/exit ends the conversation")  # at the prompt it ends nothing
        terminal.wait_for("> ")
        terminal.type("/history")
        terminal.wait_for("user: Hello")
        terminal.wait_for("assistant: ")
        terminal.wait_for("> ")
        terminal.type("/system Be brief.")
        terminal.wait_for("> ")
        terminal.type("/history")
        shown = terminal.wait_for("system: Be brief.")
        assert "Hello" not in shown
        terminal.type('"""first line')
        terminal.wait_for("... ")
        terminal.type('second line"""')
        terminal.wait_for("tokens/s")
        terminal.wait_for("> ")
        terminal.type("/history")
        terminal.wait_for("user: first line\r\nsecond line\r\nassistant: ")  # one message
        terminal.type("/bye")
        assert terminal.process.wait(timeout=EVENT_S) == 0
    finally:
        terminal.close()

    def is_idle() -> bool:
        done = run_here("models", "--json", "--router", stack.address)
        return bool(json.loads(done.stdout)["load"]["num_running_requests"] == 0)

    wait_until(is_idle)


def test_sampling_parameters_are_set_and_taken_back_within_a_conversation() -> None:
    conversation, console = ChatSession(asked={"timeout_s": None}), Console(file=io.StringIO())
    for command in ("/set temperature 0", "/set max-tokens 7", "/set top_k 3", "/set top_k"):
        assert obey(command, conversation, console)
    assert conversation.asked == {"timeout_s": None, "temperature": 0.0, "max_tokens": 7}
    for wrong in ("/set temperature warm", "/set nonsense 1"):
        assert obey(wrong, conversation, console)
    assert conversation.asked == {"timeout_s": None, "temperature": 0.0, "max_tokens": 7}
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "temperature takes a number, not 'warm'" in shown
    assert "nothing is called 'nonsense'" in shown


def make_conversation() -> ChatSession:
    conversation = ChatSession("Be kind.")
    for text in ("one", "two"):
        conversation.ask(text)
        conversation.answered(text.upper())
    return conversation


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("/clear", ["Be kind."]),
        ("/undo", ["Be kind.", "one", "ONE"]),
        ("/system Be brief.", ["Be brief."]),
        ("/system", []),
        ("/nonsense", ["Be kind.", "one", "ONE", "two", "TWO"]),
    ],
)
def test_commands_of_a_conversation_forget_what_they_say(command: str, left: list[str]) -> None:
    conversation = make_conversation()
    assert obey(command, conversation, Console(file=io.StringIO()))
    assert [message["content"] for message in conversation.messages] == left
    for end in ("/exit", "/quit"):
        assert not obey(end, conversation, Console(file=io.StringIO()))


def test_an_unknown_command_is_named_and_help_lists_every_command() -> None:
    conversation, console = make_conversation(), Console(file=io.StringIO(), width=200)
    for command in ("/histroy", "/help"):
        assert obey(command, conversation, console)
    wrong, *listed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert wrong == "there is no command /histroy; did you mean /history? /help lists them"
    assert listed == COMMANDS.splitlines()
    assert not obey("/bye", conversation, console)
    assert len(conversation.turns) == 4


def test_a_conversation_is_sent_whole_with_its_instructions_first() -> None:
    conversation = make_conversation()
    conversation.ask("three")
    first, *_, last = conversation.messages
    assert first == {"role": "system", "content": "Be kind."}
    assert last == {"role": "user", "content": "three"}
    assert len(conversation.messages) == 6


@pytest.mark.parametrize("module", [bench, chat, embed, generate, models, tokenize])
def test_examples_of_the_help_are_commands_that_parse(module: object) -> None:
    parser, examples = make_parser(), getattr(module, "EXAMPLES")  # noqa: B009
    lines = re.findall(r"signalbox (.*)", examples)
    assert len(lines) >= 2
    for line in lines:
        words = re.findall(r'"[^"]*"|[^\s"]+', re.split(r"\s+[#|<]", line)[0])
        parser.parse_args([word.strip('"') for word in words])


BENCH = ("bench", "--json", "--requests", "6", "--max-tokens", "8", "--prompt-tokens", "9")


def test_bench_counts_what_a_router_and_its_http_api_answered(stack: Stack) -> None:
    over_grpc = signalbox(*BENCH, "--router", stack.address)
    over_http = signalbox(*BENCH, "--url", stack.http_url(), "--rate", "20")
    for done in (over_grpc, over_http):
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert (figures["completed"], figures["failed"]) == (6, 0)
        assert figures["output_tokens"] == 48
        # A step takes 20 ms; a client that comes late reads several tokens at once.
        assert figures["inter_token_latency_ms"]["p99"] > 10
    assert json.loads(over_grpc.stdout)["prompt_tokens"] == 54


def test_bench_replays_a_file(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "requests"
    asked = [{"prompt": "a b", "max_tokens": n, "ignore_eos": True} for n in (1, 2, 3)]
    lines = (json.dumps({"timestamp": i, **fields}) for i, fields in enumerate(asked))
    path.write_text("\n".join(lines))
    at = ("--router", stack.address)
    done = signalbox("bench", "--json", "--replay", str(path), "--speed", "10", *at)
    figures = json.loads(done.stdout)
    assert (figures["completed"], figures["output_tokens"]) == (3, 6)
    assert figures["duration_s"] >= 0.2  # two seconds, ten times as fast


def test_bench_fails_if_any_request_does(stack: Stack, tmp_path: Path) -> None:
    path = tmp_path / "requests"
    asked = [{"prompt": "a", "max_tokens": n} for n in (1, 1_000_000, 2)]
    path.write_text("\n".join(map(json.dumps, asked)))
    done = signalbox("bench", "--json", "--replay", str(path), "--router", stack.address)
    assert done.returncode == 1
    figures = json.loads(done.stdout)
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert "1 of 3 requests failed: INVALID_ARGUMENT" in done.stderr


def num_succeeded(stack: Stack) -> float:
    """Returns how many requests have ended well, as the router's metrics say."""
    text = httpx2.get(stack.http_url().replace("/v1", "/metrics"), timeout=EVENT_S).text
    counts = re.findall(r"^signalbox_request_success_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, counts))


def test_ctrl_c_prints_what_bench_has_so_far(stack: Stack) -> None:
    arguments = ("--requests", "500", "--concurrency", "4", "--max-tokens", "20", "--json")
    command = [*COMMAND, "bench", *arguments, "--router", stack.address]
    before = num_succeeded(stack)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: num_succeeded(stack) >= before + 5)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=EVENT_S)
    figures = json.loads(output)
    assert process.returncode == 130
    assert figures["completed"] >= 1
    assert figures["unfinished"] > 0
    assert figures["completed"] + figures["failed"] + figures["unfinished"] == 500
    assert figures["output_tokens"] >= 20 * figures["completed"]


def test_bench_that_gets_no_answer_fails_with_the_reason(stack: Stack) -> None:
    done = signalbox(*BENCH[:-4], "--max-tokens", "1000000", "--router", stack.address)
    assert done.returncode == 1
    assert json.loads(done.stdout)["failures"] == {"INVALID_ARGUMENT": 6}
    assert "no request ended well: INVALID_ARGUMENT" in done.stderr
