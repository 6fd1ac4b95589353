"""Engines over the simulated model that have nothing left to do when a test ends."""

from collections.abc import Iterator

import pytest

from signalbox import LLM, LLMEngine
from tests.signalbox.llm.make import assert_at_rest, make_engine, make_llm


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make_llm() as llm:
        yield llm
        assert_at_rest(llm.llm_engine)


@pytest.fixture
def engine() -> Iterator[LLMEngine]:
    with make_engine() as engine:
        yield engine
        while engine._core.is_busy:  # what an abort has left in flight
            engine.step()
        assert_at_rest(engine)
