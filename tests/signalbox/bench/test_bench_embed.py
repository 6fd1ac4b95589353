"""What `signalbox bench --embed` sends, counts and shows."""

import json
from typing import Any

import pytest
from rich.console import Console

from signalbox.bench import report
from signalbox.bench.command import failure_text
from signalbox.bench.grpc_target import GrpcTarget
from signalbox.bench.http_target import HttpTarget
from signalbox.bench.load_loops import closed_loop
from signalbox.bench.workload import BenchRequest, SyntheticTexts
from signalbox.client.connection import PLAIN
from tests.router.apis.openai.clients import make_http
from tests.router.fakes import make_files
from tests.router.generation.pooling.pooling_stack import (
    EMBEDS,
    counts,
    make_pooling_files,
    make_pooling_stack,
    pooling,
)

TOO_LONG = BenchRequest(texts=("a " * 5000,))


def make_texts(**changes: Any) -> SyntheticTexts:
    fields: dict[str, Any] = {"num_requests": 40, "max_words": 6, "texts_per_request": 3}
    return SyntheticTexts(**fields | changes)


def test_texts_have_every_length_up_to_the_longest() -> None:
    asks = make_texts().asks()
    assert {len(ask.texts) for ask in asks} == {3}
    assert {len(text.split()) for ask in asks for text in ask.texts} == {1, 2, 3, 4, 5, 6}
    assert asks == make_texts().asks() != make_texts(seed=1).asks()


@pytest.mark.parametrize("field", ["num_requests", "max_words", "texts_per_request"])
def test_a_load_of_no_texts_is_refused_by_its_flag(field: str) -> None:
    with pytest.raises(ValueError, match=r"--[a-z-]+ is 0; it must be at least 1"):
        make_texts(**{field: 0})


async def test_vectors_and_tokens_are_counted_over_grpc_and_http() -> None:
    asks = [*make_texts(num_requests=4).asks(), TOO_LONG]
    files = make_pooling_files()
    async with make_http(pooling(counts), files=files, pooling=EMBEDS) as http:
        async with GrpcTarget(http.stack.address, PLAIN) as target:
            over_grpc = await closed_loop(target.send, asks, concurrency=2)
        async with HttpTarget(str(http.sdk.base_url), PLAIN) as endpoint:
            over_http = await closed_loop(endpoint.send, asks, concurrency=2)
    for measured in (over_grpc, over_http):
        assert (measured.num_completed, measured.num_failed) == (4, 1)
        assert measured.num_texts == 12
        assert measured.num_prompt_tokens == 12 * 7  # as the scheduler says
    assert over_grpc.failures == {"INVALID_ARGUMENT": 1}
    assert over_http.failures == {"400 Bad Request": 1}
    for measured in (over_grpc, over_http):
        (message,) = measured.messages.values()
        assert "tokens" in message


@pytest.mark.parametrize("over", ["grpc", "http"])
async def test_a_load_that_a_model_refuses_says_why(over: str) -> None:
    async with make_http(files=make_files()) as http:
        url, address = str(http.sdk.base_url), http.stack.address
        target = HttpTarget(url, PLAIN) if over == "http" else GrpcTarget(address, PLAIN)
        async with target:
            measured = await closed_loop(target.send, make_texts().asks(), concurrency=1)
    text = failure_text(measured)
    reason = "400 Bad Request" if over == "http" else "FAILED_PRECONDITION"
    assert text.startswith(f"no request ended well: {reason} (")
    assert "generates text" in text


async def test_figures_of_texts_have_no_tokens_of_answers() -> None:
    async with (
        make_pooling_stack() as stack,
        GrpcTarget(stack.address, PLAIN) as target,
    ):
        measured = await closed_loop(target.send, make_texts().asks(), concurrency=1)
    figures = report.summary(measured)
    json.dumps(figures, allow_nan=False)
    assert figures["texts"] == 120
    assert figures["texts_per_s"] == pytest.approx(120 / measured.duration_s)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(report.render(measured, "title"))
    assert "texts/s" in shown.get()
    assert "output tokens/s" not in shown.get()
