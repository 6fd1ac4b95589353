"""A receipt's request is computed again, and what was changed in the receipt is found."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, SamplingParams, StructuredOutputsParams
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.recomputation import (
    Difference,
    OtherEngine,
    compare,
    recompute,
)
from signalbox.llm.requests.prompts import Prompt
from signalbox_contract.model import Adapter
from signalbox_router.receipts.receipt_codec import decode
from signalbox_router.receipts.receipts import Receipts
from signalbox_router.requests.request_output import End
from signalbox_worker.config import SpeculationConfig
from tests.gpu_worker.tiny_models import make_llama
from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.llm.make import make_llm

skip_without_native_kernels()

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]
PARAMS = {
    "greedy": SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    "seeded": SamplingParams(seed=7, top_p=0.9, top_k=30, min_p=0.001, max_tokens=12),
    "penalties": SamplingParams(
        temperature=0,
        presence_penalty=0.5,
        frequency_penalty=0.4,
        repetition_penalty=1.3,
        logit_bias={5: 1.5},
        bad_words=["w9 w10"],
        min_tokens=3,
        max_tokens=12,
    ),
    "several": SamplingParams(seed=3, n=3, max_tokens=6, ignore_eos=True),
    "stop": SamplingParams(seed=5, stop=["3"], max_tokens=60, ignore_eos=True),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model")
    make_llama(path)
    return str(path)


def make_core(model: str, **options: Any) -> Iterator[EngineCore]:
    with LLM(model, dtype="float32", kv_cache_memory=0.05, swap_space=0, **options) as llm:
        yield llm.llm_engine._core


@pytest.fixture(scope="module")
def core(model: str) -> Iterator[EngineCore]:
    yield from make_core(model)


@pytest.fixture(scope="module")
def drafting(model: str) -> Iterator[EngineCore]:
    yield from make_core(model, speculation=True)


def issue(core: EngineCore, params: SamplingParams, *, adapter: str = "") -> dict[str, Any]:
    """Returns the receipt of a request, as a client reads it."""
    resolved = core.params.resolve(params, num_prompt_tokens=len(PROMPT))
    request = core.add("one", Prompt(None, PROMPT, adapter=adapter), resolved)
    while request.ended is None:
        core.send_steps()
        core.complete_step()
    request.collect()
    end = End(request.ended.usage, request.ended.timings, arithmetic=request.ended.arithmetic)
    receipt = Receipts().of(core.model, request, end, kept_token_ids=frozenset())
    read: dict[str, Any] = json.loads(json.dumps(receipt))
    return read


@pytest.mark.parametrize("name", PARAMS)
def test_a_request_is_computed_again_with_drafts_and_without(
    name: str, core: EngineCore, drafting: EngineCore
) -> None:
    document = issue(core, PARAMS[name])
    assert document == issue(drafting, PARAMS[name]) | {"created": document["created"]}
    receipt = decode(document)
    assert any(one.token_ids for one in receipt.outputs)
    for engine in (core, drafting):
        assert recompute(engine, receipt) is None
        assert engine.num_unfinished == 0


@pytest.mark.parametrize("name", PARAMS)
def test_a_changed_token_is_found_at_its_position(name: str, core: EngineCore) -> None:
    document = issue(core, PARAMS[name])
    branch = len(document["outputs"]) - 1
    tokens = document["outputs"][branch]["token_ids"]
    position, true = len(tokens) // 2, tokens[len(tokens) // 2]
    tokens[position] = true + 1
    assert recompute(core, decode(document)) == Difference(branch, position, true + 1, true)


def test_output_that_is_cut_or_longer_or_ends_otherwise_is_found(core: EngineCore) -> None:
    document = issue(core, PARAMS["greedy"])
    (output,) = document["outputs"]
    tokens = list(output["token_ids"])
    output["token_ids"] = tokens[:-1]
    cut = recompute(core, decode(document))
    assert cut == Difference(0, 11, "the end (length)", tokens[-1])
    output["token_ids"] = [*tokens, 3]
    longer = recompute(core, decode(document))
    assert longer == Difference(0, 12, 3, "the end (length)")
    output |= {"token_ids": tokens, "finish_reason": "stop"}
    other = recompute(core, decode(document))
    assert other == Difference(0, 12, "the end (stop)", "the end (length)")


def test_a_token_outside_of_the_vocabulary_is_found(drafting: EngineCore) -> None:
    document = issue(drafting, PARAMS["greedy"])
    true = document["outputs"][0]["token_ids"][0]
    document["outputs"][0]["token_ids"][0] = 1 << 30
    assert recompute(drafting, decode(document)) == Difference(0, 0, 1 << 30, true)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("seeded", {"seed": "8"}),
        ("seeded", {"temperature": 3.0}),
        ("penalties", {"repetition_penalty": 1}),
    ],
)
def test_changed_parameters_are_found(name: str, changes: dict[str, Any], core: EngineCore) -> None:
    document = issue(core, PARAMS[name])
    document["parameters"]["sampling"] |= changes
    assert recompute(core, decode(document)) is not None


def test_structured_output_is_computed_again() -> None:
    """Of a model that knows letters, which those of other tests do not."""
    rule = StructuredOutputsParams(regex="[a-f]+, [0-9]+")
    params = SamplingParams(seed=1, max_tokens=12, structured_outputs=rule)
    with make_llm() as llm, make_llm(speculation=SpeculationConfig(num_tokens=4)) as drafting:
        plain, other = llm.llm_engine._core, drafting.llm_engine._core
        document = issue(plain, params)
        assert recompute(plain, decode(document)) is None
        assert recompute(other, decode(document)) is None
        document["parameters"]["sampling"]["structured_output"] = {"regex": "[g-z]+"}
        assert recompute(plain, decode(document)) is not None


def test_a_changed_prompt_is_found(core: EngineCore) -> None:
    document = issue(core, PARAMS["greedy"])
    document["prompt_token_ids"][0] += 1
    assert recompute(core, decode(document)) is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": "f" * 64}, "of another model"),
        ({"adapter": "a" * 64}, "--lora NAME=PATH"),
        ({"arithmetic": "b" * 64}, "computes other bits"),
    ],
)
def test_what_another_engine_has_computed_is_refused(
    changes: dict[str, Any], reason: str, core: EngineCore
) -> None:
    receipt = decode(issue(core, PARAMS["greedy"]))
    with pytest.raises(OtherEngine, match=reason):
        recompute(core, replace(receipt, **changes))


def test_an_engine_of_another_type_compares_greedy_draws_alone(
    core: EngineCore, model: str
) -> None:
    document, sampled = (issue(core, PARAMS[name]) for name in ("greedy", "seeded"))
    tokens = document["outputs"][0]["token_ids"]
    for other in make_core(model, kv_cache_dtype="int8"):
        with pytest.raises(OtherEngine, match="computes other bits"):
            recompute(other, decode(document))
        assert compare(other, decode(document), tolerance=0.5) is None
        true, tokens[4] = tokens[4], 3
        assert compare(other, decode(document), tolerance=0.5) == Difference(0, 4, 3, true)
        assert compare(other, decode(document), tolerance=100.0) is None
        with pytest.raises(OtherEngine, match="the receipt sets temperature"):
            compare(other, decode(sampled), tolerance=0.5)


def test_the_adapter_decides_too() -> None:
    adapter = Adapter(name="one", sha256="a" * 64)
    with make_llm(adapters=(adapter,)) as llm, make_llm() as without:
        core = llm.llm_engine._core
        document = issue(core, PARAMS["greedy"], adapter=adapter.sha256)
        assert document["adapter"] == adapter.sha256
        assert recompute(core, decode(document)) is None
        assert recompute(core, decode(document | {"adapter": ""})) is not None
        with pytest.raises(OtherEngine, match="--lora NAME=PATH"):
            recompute(without.llm_engine._core, decode(document))
