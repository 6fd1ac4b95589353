"""`lora_request` in LLM, LLMEngine and AsyncLLMEngine: PEFT's tokens, and errors that name it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signalbox import LLM, AsyncEngineArgs, AsyncLLMEngine, LLMEngine, SamplingParams
from signalbox.lora.request import LoRARequest
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapters, peft_tokens
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.signalbox.llm.make import assert_at_rest, make_llm, run, tokens_of

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "device": "cpu",
    "enable_lora": True,
    "max_num_seqs": 16,
    "kv_cache_memory": 0.05,
}
NUM_TOKENS = 8
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": ids} for ids in make_prompts(5, 33, 17)]


class Adapted:
    def __init__(self, path: Path) -> None:
        self.path, self.model = path, make_model(path, "llama3", head_dim=16)
        make_adapters(self.model, path / "adapters", KINDS[:3])

    def request(self, number: int) -> LoRARequest:
        return LoRARequest(f"a{number}", number + 1, str(self.path / f"adapters/a{number}"))

    def expected(self, number: int | None) -> list[list[int]]:
        prompts = [prompt["prompt_token_ids"] for prompt in PROMPTS]
        if number is None:
            return [reference_tokens(self.model, prompt, NUM_TOKENS) for prompt in prompts]
        return peft_tokens(self.model, self.path / f"adapters/a{number}", prompts, NUM_TOKENS)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return Adapted(tmp_path_factory.mktemp("adapted"))


@pytest.fixture(scope="module", params=["auto", "torch"])
def llm(adapted: Adapted, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(str(adapted.path), cpu_backend=request.param, **OPTIONS) as llm:
        yield llm
        assert_at_rest(llm.llm_engine)


def test_adapters_are_loaded_when_requests_name_them(llm: LLM, adapted: Adapted) -> None:
    for number in (None, 0, 1, None, 0):
        given = None if number is None else adapted.request(number)
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=given)
        assert tokens_of(outputs) == adapted.expected(number)


def test_a_list_has_an_adapter_for_each_prompt(llm: LLM, adapted: Adapted) -> None:
    given = [adapted.request(2), None, adapted.request(0)]
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=given)
    expected = [adapted.expected(number)[i] for i, number in enumerate((2, None, 0))]
    assert tokens_of(outputs) == expected
    with pytest.raises(ValueError, match="1 lora_request for 3 prompts"):
        llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=given[:1])


def test_names_numbers_and_folders_must_agree(llm: LLM, adapted: Adapted) -> None:
    path = adapted.request(0).path
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(0))
    for other, message in (
        (LoRARequest("another", 1, path), "lora_int_id 1 is that of the adapter a0"),
        (LoRARequest("a0", 9, adapted.request(1).path), "the adapter a0 is loaded from"),
        (LoRARequest("none", 10, "/no/such/folder"), "cannot read /no/such/folder"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=other)
    again = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(0))
    assert tokens_of(again) == tokens_of(outputs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("", 1, "x"), "lora_name is ''"),
        (("a", 0, "x"), "lora_int_id is 0"),
        (("a", True, "x"), "lora_int_id is True"),
        (("a", 1), "lora_path is empty"),
    ],
)
def test_a_request_without_name_number_or_folder_is_refused(
    fields: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LoRARequest(*fields)


def test_a_rank_beyond_the_engines_is_refused(adapted: Adapted) -> None:
    with LLM(str(adapted.path), max_lora_rank=4, **OPTIONS) as llm:
        with pytest.raises(ValueError, match=r"has rank 8, .* 4; raise --max-lora-rank"):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(0))
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(1))
        assert tokens_of(outputs) == adapted.expected(1)


def test_an_adapter_beyond_the_memory_for_them_is_refused(adapted: Adapted) -> None:
    with LLM(str(adapted.path), max_cpu_loras=1, **OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(2))
        assert tokens_of(outputs) == adapted.expected(2)
        with pytest.raises(ValueError, match=r"the adapter a0 takes .* raise --max-cpu-loras"):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=adapted.request(0))
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert tokens_of(outputs) == adapted.expected(None)
        assert_at_rest(llm.llm_engine)


def test_engines_made_without_adapters_say_so(adapted: Adapted) -> None:
    with make_llm() as llm:
        with pytest.raises(ValueError, match="made with enable_lora=True"):
            llm.generate("a", PARAMS, use_tqdm=False, lora_request=adapted.request(0))
        with pytest.raises(TypeError, match="lora_request is a str"):
            llm.generate(["a"], PARAMS, use_tqdm=False, lora_request=["a0"])  # type: ignore[list-item]
        assert_at_rest(llm.llm_engine)


def test_an_engine_adds_adapters_while_others_run(llm: LLM, adapted: Adapted) -> None:
    engine: LLMEngine = llm.llm_engine
    assert engine.add_lora(adapted.request(0)) and 1 in engine.list_loras()
    numbers: list[int | None] = [0, None, 1]
    for i, number in enumerate(numbers):
        given = None if number is None else adapted.request(number)
        engine.add_request(str(i), PROMPTS[i], PARAMS, lora_request=given)
        engine.step()
    outputs = run(engine)
    for i, number in enumerate(numbers):
        assert tokens_of(outputs[str(i)][-1:]) == [adapted.expected(number)[i]]


async def test_an_async_engine_loads_beside_its_steps(adapted: Adapted) -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(adapted.path), **OPTIONS))

    async def generate(i: int, number: int | None) -> list[int]:
        given = None if number is None else adapted.request(number)
        stream = engine.generate(PROMPTS[i], PARAMS, f"{i} {number}", lora_request=given)
        return [output async for output in stream][-1].outputs[0].token_ids

    pairs = [(i, number) for i in range(3) for number in (None, 0, 1, 2)]
    try:
        found = await asyncio.gather(*(generate(*pair) for pair in pairs))
        assert await engine.add_lora(adapted.request(0)) and await engine.list_loras() == {1, 2, 3}
    finally:
        assert_at_rest(engine)
        engine.shutdown()
    expected = {number: adapted.expected(number) for number in (None, 0, 1, 2)}
    assert found == [expected[number][i] for i, number in pairs]
