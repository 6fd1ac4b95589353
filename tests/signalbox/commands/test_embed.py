"""`signalbox embed`, against a router over a scheduler that pools."""

import argparse
import io
import json
import re
from typing import Any

import pytest

from signalbox.client.tables import show
from signalbox.commands import embed, models
from tests.router.fakes import ids_of
from tests.router.generation.pooling.pooling_stack import SETTINGS, ids, make_pooling_stack


def parsed(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    embed.add_flags(parser)
    return vars(parser.parse_args(arguments))


async def test_each_text_has_a_line_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["a" * (1 + i % 7) for i in range(embed.TEXTS_OF_A_CALL + 3)]
    async with make_pooling_stack(vector_of=lambda one: [len(ids(one)), 0, 0, 0]) as stack:
        await embed._run(parsed("--router", stack.address, "--dimensions", "2", *texts), texts)
        lengths = [len(ids_of(text)) + 2 for text in texts]
        asked = sorted(len(ids(one)) for one in stack.scheduler.added)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [[1, 0]] * len(texts)
    assert asked == sorted(lengths)


async def test_a_prompt_and_truncation_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    texts = {SETTINGS: {"prompts": {"query": "Q "}}}
    async with make_pooling_stack(texts=texts, max_model_len=8) as stack:
        flags = ("--router", stack.address, "--prompt-name", "query", "--truncate")
        await embed._run(parsed(*flags), ["word " * 30])
    (request,) = stack.scheduler.added
    assert len(ids(request)) == 8
    assert ids(request)[1:2] == ids_of("Q ")[:1]
    assert len(capsys.readouterr().out.splitlines()) == 1


async def test_models_says_what_a_request_may_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    async with make_pooling_stack(texts={SETTINGS: {"prompts": {"query": "Q "}}}) as stack:
        (model,), _ = await models._ask(parsed("--router", stack.address))
        show(models._table(model))
        await embed._run(parsed("--router", stack.address), ["a"])
    shown, line = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert len(json.loads(line)) == model.num_outputs
    for row in (
        rf"elements\W+{model.num_outputs}\b",
        rf"dimensions\W+{', '.join(map(str, model.dimensions))}\b",
        r"prompts\W+query\b",
    ):
        assert re.search(row, shown)


def test_texts_are_lines_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\ntwo"))
    assert embed._lines() == ["one", "two"]
