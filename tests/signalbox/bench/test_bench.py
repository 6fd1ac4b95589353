"""What `signalbox bench` sends, counts and shows."""

import asyncio
import itertools
import json
import logging
import math
import ssl
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from signalbox.bench import flags, report, trace_file
from signalbox.bench.http_stream import HttpAddress, HttpStatusError, post_for_events
from signalbox.bench.http_target import HttpTarget, TokenCounter
from signalbox.bench.load_loops import RequestFailed, closed_loop, open_loop
from signalbox.bench.measurements import Measured, tokens_by_time
from signalbox.bench.workload import BenchRequest, Synthetic, poisson
from signalbox.client.connection import PLAIN, Connection
from signalbox_router.config import LoggedRequests
from signalbox_router.insight.request_log import RequestLog
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.requests.api_request import ApiRequest, PromptText, PromptTokens
from signalbox_rpc.telemetry import logs
from signalbox_rpc.transport.tls import TlsConfig
from tests.rpc.certificates import Authority


class Server:
    """Answers each request with two tokens after a delay; fails those of the prompt "bad"."""

    def __init__(self, delay_s: float = 0.01) -> None:
        self.delay_s = delay_s
        self.running = self.most_running = 0

    async def send(self, ask: BenchRequest, measured: Measured) -> AsyncIterator[int]:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.delay_s)
            if ask.prompt == "bad":
                raise RequestFailed("REFUSED")
            yield 2
        finally:
            self.running -= 1


async def test_a_closed_loop_keeps_so_many_running_and_no_more() -> None:
    server, ended = Server(), 0

    def on_end() -> None:
        nonlocal ended
        ended += 1

    asks = [BenchRequest(prompt="a")] * 10
    measured = await closed_loop(server.send, asks, concurrency=3, on_end=on_end)
    assert server.most_running == 3
    assert (measured.num_completed, measured.num_tokens, ended) == (10, 20, 10)


async def test_an_open_loop_does_not_wait_and_counts_from_when_a_request_was_due() -> None:
    server = Server(delay_s=0.05)

    async def busy(ask: BenchRequest, measured: Measured) -> AsyncIterator[int]:
        time.sleep(0.05)  # noqa: ASYNC251 (a sender that cannot keep up is what is tested)
        async for tokens in server.send(ask, measured):
            yield tokens

    measured = await open_loop(busy, [BenchRequest(prompt="a")] * 8, [0.0] * 8)
    assert server.most_running == 8
    assert max(measured.first_token_s) >= 8 * 0.05


async def test_failures_are_counted_by_reason_and_leave_no_latency() -> None:
    asks = [BenchRequest(prompt="a"), BenchRequest(prompt="bad"), BenchRequest(prompt="bad")]
    measured = await closed_loop(Server().send, asks, concurrency=1)
    assert measured.failures == {"REFUSED": 2}
    assert len(measured.first_token_s) == len(measured.whole_s) == 1
    assert report.summary(measured)["failed"] == 2


def test_poisson_arrivals_come_at_the_rate_and_vary_as_they_should() -> None:
    at_s = poisson(5.0, 4000, seed=3)
    gaps = [b - a for a, b in itertools.pairwise(at_s)]
    assert at_s[0] == 0.0
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.1)
    assert poisson(5.0, 10, seed=3) == poisson(5.0, 10, seed=3) != poisson(5.0, 10, seed=4)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="--rate is"):
        poisson(rate, 3)


def make_synthetic(**changes: Any) -> Synthetic:
    fields: dict[str, Any] = {"num_requests": 6, "prompt_tokens": 5, "max_tokens": 7}
    return Synthetic(**fields | {"vocab_size": 1000} | changes)


def prompts(synthetic: Synthetic) -> list[list[int]]:
    found = [ask.prompt for ask in synthetic.asks()]
    assert all(isinstance(prompt, list) for prompt in found)
    return found  # type: ignore[return-value]


def test_prefixes_are_shared_in_turn_and_the_rest_is_not() -> None:
    found = prompts(make_synthetic(shared_tokens=8, num_prefixes=2))
    assert {len(prompt) for prompt in found} == {13}
    assert found[0][:8] == found[2][:8] == found[4][:8] != found[1][:8] == found[3][:8]
    assert len({tuple(prompt[8:]) for prompt in found}) == 6


def test_the_same_seed_asks_the_same() -> None:
    assert prompts(make_synthetic(seed=1)) == prompts(make_synthetic(seed=1))
    assert prompts(make_synthetic(seed=1)) != prompts(make_synthetic(seed=2))


def test_who_takes_no_token_ids_is_asked_in_words() -> None:
    (text,) = {type(ask.prompt) for ask in make_synthetic(vocab_size=0).asks()}
    assert text is str
    ask = make_synthetic(is_chat=True).asks()[0]
    ((role, words),) = ask.messages
    assert (role, len(words.split()), ask.sampling["max_tokens"]) == ("user", 5, 7)


@pytest.mark.parametrize("field", ["num_requests", "prompt_tokens", "max_tokens", "num_prefixes"])
def test_a_load_of_nothing_is_refused_by_its_flag(field: str) -> None:
    with pytest.raises(ValueError, match=r"--[a-z-]+ is 0; it must be at least 1"):
        make_synthetic(**{field: 0})


def write(path: Path, *lines: Any) -> str:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def test_a_file_is_replayed_by_its_times(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5}
    batch = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
    path = write(
        tmp_path / "log",
        {"timestamp": 2.5, "prompt": [1, 2], "max_tokens": 3, "model": "m", "stream": True},
        "",
        {"timestamp": 1, **chat},
        {"timestamp": 3, **batch, "body": {"prompt": "a", "temperature": 0}},
    )
    assert trace_file.read(path) == [
        BenchRequest(messages=(("user", "Hi"),), sampling={"max_tokens": 5}, at_s=1.0),
        BenchRequest(prompt=[1, 2], sampling={"max_tokens": 3}, at_s=2.5),
        BenchRequest(prompt="a", sampling={"temperature": 0}, at_s=3.0),
    ]


def test_our_own_log_is_replayed_at_its_times(tmp_path: Path) -> None:
    text = ApiRequest(prompt=PromptText("Once", True), sampling={"max_tokens": 3, "top_p": 0.5})
    tokens = ApiRequest(prompt=PromptTokens([5, 9]), sampling={"stop": ("a",), "logprobs": 2})
    chat = ApiRequest(prompt=Conversation(messages=(Message("user", ("Hi", "there")),)))
    path = tmp_path / "log"
    with path.open("w") as sink:
        handler = logging.StreamHandler(sink)
        handler.setFormatter(logs.formatter("router", "json"))
        logger = logging.getLogger("signalbox_router.insight.request_log")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            log = RequestLog(LoggedRequests.PROMPTS)
            for asked in (text, tokens, chat):
                log.begun(asked)
                log.failed("CANCELLED", "why")
        finally:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
    first, second, third = trace_file.read(str(path))
    assert (first.prompt, first.at_s) == ("Once", 0)
    assert first.sampling == {"max_tokens": 3, "top_p": 0.5}
    assert (second.prompt, second.sampling) == ([5, 9], {"stop": ["a"]})
    assert third.messages == (("user", "Hi\nthere"),)
    assert 0 <= (second.at_s or 0) <= (third.at_s or 0) < 1000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 1: "),
        ("[]", "expected a JSON object"),
        ({"max_tokens": 5}, "exactly one of prompt and messages"),
        ({"prompt": "a", "messages": []}, "exactly one of prompt and messages"),
        ({"prompt": 5}, "neither a text nor a list"),
        ({"prompt": [True]}, "neither a text nor a list"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "a message needs a role"),
        ({"prompt": "a", "tools": []}, "tools is not replayed"),
        ({"prompt": "a", "timestamp": "now"}, "timestamp is not a number"),
        ('{"prompt": "a", "timestamp": NaN}', "timestamp is not a number"),
        ("[" * 100_000, "line 1: "),
    ],
)
def test_a_line_that_is_no_request_is_refused_by_its_number(
    tmp_path: Path, line: Any, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        trace_file.read(write(tmp_path / "log", line))


def test_a_file_that_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no requests"):
        trace_file.read(write(tmp_path / "log", ""))
    with pytest.raises(ValueError, match=r"cannot read --replay .*No such file"):
        trace_file.read(str(tmp_path / "none"))


def test_tokens_are_what_events_or_the_usage_say() -> None:
    counter = TokenCounter()
    events: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"text": "b"}], "usage": {"prompt_tokens": 4, "completion_tokens": 5}},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 7}},
    ]
    assert [counter.new_tokens(event) for event in events] == [0, 1, 4, 0]
    assert (counter.num_prompt_tokens, counter.num_uncounted) == (4, 2)
    with pytest.raises(RequestFailed, match="rate_limit"):
        counter.new_tokens({"error": {"type": "rate_limit"}})


@asynccontextmanager
async def answering(head: bytes, pieces: list[bytes]) -> AsyncIterator[HttpAddress]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield HttpAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30), max_size=20))
def test_events_are_read_wherever_chunks_begin(cuts: list[int]) -> None:
    body = b"".join(b'data: {"n": %d}\r\n\r\n' % n for n in range(12)) + b"data: [DONE]\n\n"
    chunks, start = [], 0
    for cut in [*cuts, len(body)]:
        if piece := body[start : start + cut]:
            chunks.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        start += cut

    async def run() -> list[Any]:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with answering(head, [*chunks, b"0\r\n\r\n"]) as endpoint:
            return [event async for event in post_for_events(endpoint, "/x", {})]

    assert asyncio.run(run()) == [{"n": n} for n in range(12)]


async def test_a_refusal_over_http_is_a_failure_with_its_status() -> None:
    head = b"HTTP/1.1 429 Too Many Requests\r\n\r\n"
    async with answering(head, [b"slow down"]) as endpoint:
        with pytest.raises(HttpStatusError, match="429 Too Many Requests: slow down"):
            _ = [event async for event in post_for_events(endpoint, "/x", {})]
        url = f"http://{endpoint.host}:{endpoint.port}/v1"
        async with HttpTarget(url, PLAIN, model="m") as target:
            measured = await closed_loop(target.send, [BenchRequest(prompt="a")], concurrency=1)
    assert measured.failures == {"429 Too Many Requests": 1}


async def test_an_endpoint_that_is_cut_off_or_too_slow_is_a_failure() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head, [b"ff\r\ndata: "]) as endpoint:
        url = f"http://{endpoint.host}:{endpoint.port}/v1"
        async with HttpTarget(url, PLAIN, model="m") as target:
            measured = await closed_loop(target.send, [BenchRequest(prompt="a")], concurrency=1)
    assert measured.failures == {"connection: IncompleteReadError": 1}


async def test_an_endpoint_behind_tls_is_verified_and_sees_the_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("localhost"))
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "localhost", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
    trusted = Connection(tls=TlsConfig(ca=authority.file), api_key="sb-1")
    async with server:
        for connection in (trusted, PLAIN):
            async with HttpTarget(url, connection, model="m") as target:
                measured = await closed_loop(target.send, [BenchRequest(prompt="a")], concurrency=1)
            if connection is trusted:
                assert measured.num_completed == 1
            else:
                assert measured.failures == {"connection: SSLCertVerificationError": 1}
    assert len(seen) == 1 and b"authorization: Bearer sb-1\r\n" in seen[0]


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://a/v1", "http://", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="--url is"):
        HttpTarget(url, PLAIN)


async def test_figures_are_json_and_tables_whatever_was_seen() -> None:
    asks = [BenchRequest(prompt="a")] * 5
    for seen in (asks, [BenchRequest(prompt="bad")]):
        measured = await closed_loop(Server(0.001).send, seen, concurrency=2)
        json.dumps(report.summary(measured), allow_nan=False)
        console = Console(width=100)
        with console.capture() as shown:
            console.print(report.render(measured, "title"))
        assert "requests/s" in shown.get()


async def test_throughput_over_time_adds_up_to_all_tokens() -> None:
    measured = await closed_loop(Server(0.01).send, [BenchRequest(prompt="a")] * 20, concurrency=3)
    rates = tokens_by_time(measured, num_bins=7)
    span_s = measured.arrivals[-1].at_s - measured.arrivals[0].at_s
    assert sum(rates) * span_s / 7 == pytest.approx(measured.num_tokens)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"replay": "x", "prompt_tokens": 5}, "--prompt-tokens has no effect with --replay"),
        ({"replay": "x", "chat": True}, "--chat has no effect with --replay"),
        ({"speed": 2.0}, "--speed has no effect without --replay"),
        ({"replay": "x", "speed": math.nan}, "--speed is nan"),
        ({"chat": True, "vocab_size": 5}, "--vocab-size has no effect with --chat"),
        ({"embed": True, "max_tokens": 5}, "--max-tokens has no effect with --embed"),
        ({"texts": 2}, "--texts has no effect without --embed"),
        ({"replay": "x", "embed": True}, "--embed has no effect with --replay"),
        ({"concurrency": 0}, "--concurrency is 0"),
        ({"timeout": 0.0}, "--timeout is 0"),
    ],
)
def test_flags_that_would_have_no_effect_are_refused(given: dict[str, Any], reason: str) -> None:
    names = ("replay", "speed", "timeout", "model", "url", "requests", "concurrency")
    options: dict[str, Any] = dict.fromkeys((*flags.DEFAULTS, *names)) | {"seed": 0}
    flags.check(options)
    with pytest.raises(ValueError, match=reason):
        flags.check(options | given)
