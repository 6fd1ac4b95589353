"""Texts that conform: of the demo model under random schemas, and of the simulated model."""

import json
import os
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from signalbox import LLM, SamplingParams, StructuredOutputsParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.sampling import grammars
from tests.signalbox.llm.make import assert_at_rest, make_engine, make_llm, run
from tests.signalbox.llm.requests.schemas import make_schema
from tests.waiting import EVENT_S

pytestmark = pytest.mark.slow

MODEL = Path("models/SmolLM2-135M-Instruct.Q4_1.gguf")
NUM_SCHEMAS = int(os.environ.get("SIGNALBOX_TEST_SCHEMAS", "25"))
"""200 when the matcher or the sampler has changed."""
MAX_TOKENS = 160
MAX_JSON_TOKENS = 300


def make_params(constraint: dict[str, Any], **changes: Any) -> SamplingParams:
    outputs = StructuredOutputsParams(**constraint)
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "structured_outputs": outputs} | changes)


@pytest.fixture(scope="module")
def demo() -> Iterator[LLM]:
    with LLM(
        str(MODEL), max_num_seqs=64, device="cpu", max_model_len=512, kv_cache_memory=0.25
    ) as llm:
        yield llm
        assert_at_rest(llm.llm_engine)


@pytest.mark.model
def test_every_text_under_a_random_schema_validates(demo: LLM) -> None:
    rng = random.Random(6)
    schemas = [make_schema(rng) for _ in range(NUM_SCHEMAS)]
    params = [
        make_params({"json": one}, seed=seed, max_tokens=MAX_JSON_TOKENS)
        for seed, one in enumerate(schemas)
    ]
    outputs = demo.generate(["A small example in JSON: "] * len(schemas), params, use_tqdm=False)
    for schema, output in zip(schemas, outputs, strict=True):
        (completion,) = output.outputs
        assert completion.finish_reason == "stop", (schema, completion.text)
        jsonschema.validate(json.loads(completion.text), schema)


@pytest.mark.model
def test_an_answer_is_one_of_the_choices(demo: LLM) -> None:
    messages = [{"role": "user", "content": "Is Paris in France?"}]
    params = make_params({"choice": ["yes", "no"]}, temperature=0)
    (output,) = demo.chat(messages, params, use_tqdm=False)
    assert output.outputs[0].text in ("yes", "no")
    assert output.outputs[0].finish_reason == "stop"


CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": "[a-f]{30,40}-[0-9]{30,40}"},
    {"json": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{60,80}$"},
              "minItems": 1, "maxItems": 1}},
    {"grammar": 'root ::= "(" (root | "." | ",") ")"'},
    {"choice": ["one" * 25, "two" * 25]},
]  # fmt: skip
PROMPTS = ["a", "bc", "def", "ghij"]


def texts_of(llm: LLM, **changes: Any) -> list[list[str]]:
    params = [make_params(one, seed=i, **changes) for i, one in enumerate(CONSTRAINTS)]
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [[one.text for one in output.outputs] for output in outputs]


def test_preemption_changes_no_text() -> None:
    with make_llm() as llm:
        expected = texts_of(llm)
    assert re.fullmatch("[a-f]{30,40}-[0-9]{30,40}", expected[0][0])
    for num_cpu_blocks in (0, 16):  # recomputed; swapped
        config = CoreConfig(scheduling=SchedulingSettings(prefix_caching=False))
        sizes = {"num_gpu_blocks": 12, "num_cpu_blocks": num_cpu_blocks, "max_model_len": 200}
        with make_llm(config, **sizes) as llm:
            for _ in range(2):  # the second time all are compiled, and start together
                assert texts_of(llm) == expected
            assert llm.llm_engine._core.scheduler.preemption.num_preemptions > 0
            assert_at_rest(llm.llm_engine)


def test_branches_conform_each_by_itself(llm: LLM) -> None:
    first, *_ = texts_of(llm, n=4)
    assert len(set(first)) > 1
    for text in first:
        assert re.fullmatch("[a-f]{30,40}-[0-9]{30,40}", text)


def test_an_object_takes_no_keys_that_its_schema_does_not_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    params = [make_params({"json": schema}, seed=seed, max_tokens=40) for seed in range(20)]
    for closes in (True, False):
        with make_llm(CoreConfig(disable_additional_properties=closes)) as llm:
            outputs = llm.generate(["a"] * len(params), params, use_tqdm=False)
            texts = [output.outputs[0].text for output in outputs]
            alone = re.compile(r'\{\s*"a"\s*:\s*(true|false)\s*\}')
            assert all(alone.fullmatch(one) for one in texts) is closes, texts
            assert_at_rest(llm.llm_engine)


@pytest.mark.parametrize(
    "constraint", [{}, {"regex": "a", "choice": ["b"]}, {"json_object": False}]
)
def test_there_is_exactly_one_constraint(constraint: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one constraint"):
        StructuredOutputsParams(**constraint)


@pytest.mark.parametrize("wrong", [{"choice": "yes"}, {"choice": [1]}, {"regex": 1}])
def test_a_constraint_of_the_wrong_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="structured_outputs"):
        StructuredOutputsParams(**wrong)


def test_a_constraint_that_does_not_compile_is_refused() -> None:
    with (
        make_llm() as llm,
        pytest.raises(ValueError, match=r"structured_output\.regex.*unclosed group"),
    ):
        llm.generate("a", make_params({"regex": "(a"}), use_tqdm=False)


@pytest.fixture
def may_compile(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No structured output is compiled before it is set."""
    may_compile, compile_grammar = threading.Event(), grammars.compile_grammar

    def compile_later(*args: Any, **kwargs: Any) -> Any:
        assert may_compile.wait(EVENT_S)
        return compile_grammar(*args, **kwargs)

    monkeypatch.setattr(grammars, "compile_grammar", compile_later)
    return may_compile


def test_others_go_on_while_a_structured_output_is_compiled(may_compile: threading.Event) -> None:
    with make_engine() as engine:
        engine.add_request("waits", "hello", make_params({"regex": "[0-9]{4}"}))
        engine.add_request("goes on", "hello", SamplingParams(max_tokens=8, temperature=0))
        ended: list[str] = []
        texts: dict[str, str] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                texts[output.request_id] = output.outputs[0].text
                if output.finished:
                    ended.append(output.request_id)
                    may_compile.set()
        assert ended == ["goes on", "waits"]
        assert re.fullmatch("[0-9]{4}", texts["waits"])
        assert_at_rest(engine)


def test_others_end_though_an_aborted_request_still_compiles(may_compile: threading.Event) -> None:
    params = make_params({"regex": "[0-9]{4}"}, max_tokens=8)
    with make_engine() as engine:
        engine.add_request("aborted", "hello", params)
        engine.add_request("goes on", "hello", SamplingParams(max_tokens=8, temperature=0))
        engine.step()
        engine.abort_request("aborted")
        assert len(run(engine)["goes on"]) == 7
        assert_at_rest(engine)
        may_compile.set()
        engine.add_request("again", "hello", params)
        assert re.fullmatch("[0-9]{4}", run(engine)["again"][-1].outputs[0].text)
        assert_at_rest(engine)
