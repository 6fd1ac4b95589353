"""A program for vLLM runs with `signalbox` in the place of `vllm`: names, paths, options."""

import argparse
import dataclasses
import subprocess
import sys
from importlib import import_module
from typing import Any
from weakref import ref

import pytest

import signalbox
from signalbox import (
    LLM,
    AsyncEngineArgs,
    EngineArgs,
    LLMEngine,
    ModelRegistry,
    PoolingParams,
    PromptType,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from signalbox.distributed import cleanup_dist_env_and_memory
from signalbox.entrypoints.openai.api_server import serve_arguments
from signalbox.llm.vllm_options import VllmOptions
from signalbox.utils import FlexibleArgumentParser, random_uuid
from signalbox.utils.print_utils import print_embeddings
from tests.signalbox.llm.make import (
    GREEDY,
    make_async_engine,
    make_llm,
    run,
    tokens_of,
)

PATHS = {
    "sampling_params": ("SamplingParams", "RequestOutputKind", "BeamSearchParams"),
    "pooling_params": ("PoolingParams",),
    "outputs": (
        "RequestOutput",
        "CompletionOutput",
        "PoolingRequestOutput",
        "EmbeddingRequestOutput",
        "ClassificationRequestOutput",
        "ScoringRequestOutput",
    ),
    "logprobs": ("Logprob",),
    "inputs": ("TextPrompt", "TokensPrompt", "PromptType"),
    "beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "engine.arg_utils": ("EngineArgs", "AsyncEngineArgs"),
    "engine.llm_engine": ("LLMEngine",),
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "entrypoints.llm": ("LLM",),
    "config": ("ProfilerConfig",),
    "distributed": ("cleanup_dist_env_and_memory",),
    "lora.request": ("LoRARequest",),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
    "v1.engine.exceptions": ("EngineDeadError",),
    "v1.metrics.reader": ("Counter", "Gauge", "Histogram", "Vector", "Metric"),
    "model_executor.models": ("ModelRegistry",),
    "utils": ("FlexibleArgumentParser", "random_uuid"),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "utils.print_utils": ("print_embeddings",),
}


@pytest.mark.parametrize(("path", "names"), PATHS.items(), ids=str)
def test_a_module_path_of_vllm_leads_to_the_same_names(path: str, names: tuple[str, ...]) -> None:
    module = import_module(f"signalbox.{path}")
    for name in names:
        found = getattr(module, name)
        assert found is getattr(signalbox.llm, name, found)
        assert found is getattr(signalbox, name, found) or name not in signalbox.__all__


def parse(*flags: str) -> argparse.Namespace:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--num-prompts", type=int)
    return parser.parse_args(flags)


def test_the_help_of_each_flag_is_what_the_class_says_of_it() -> None:
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    shown = {one.dest: one.help for one in parser._actions if one.help is not argparse.SUPPRESS}
    assert shown["max_num_seqs"] == "most sequences in a step"
    assert (shown["enable_log_requests"] or "").startswith("whether each request is logged")
    assert all(shown.values()) and "gpu_memory_utilization" in shown
    assert " ".join((shown["swap_space"] or "").split()) in " ".join(parser.format_help().split())


def test_engine_args_come_from_a_command_line() -> None:
    args = parse("--model", "m.gguf", "--max_model_len=77", "-tp", "2", "--num-prompts", "3",
                 "--no-enable-prefix-caching", "--enforce-eager", "--enable-chunked-prefill",
                 "--gpu-memory-utilization", "0.5", "--max_seq_len_to_capture", "8192")  # fmt: skip
    assert EngineArgs.from_cli_args(args) == EngineArgs(
        "m.gguf",
        max_model_len=77,
        tensor_parallel_size=2,
        enable_prefix_caching=False,
        enforce_eager=True,
        enable_chunked_prefill=True,
        gpu_memory_utilization=0.5,
        max_seq_len_to_capture="8192",
    )


def test_a_whole_number_is_written_as_for_the_server() -> None:
    flags = (
        "--model",
        "m",
        "--max-model-len",
        "8k",
        "--max-num-batched-tokens",
        "2K",
        "--seed",
        "5.0",
    )
    args = parse(*flags, "--kv-cache-memory-bytes", "1.5g")
    assert EngineArgs.from_cli_args(args) == EngineArgs(
        "m",
        max_model_len=8000,
        max_num_batched_tokens=2048,
        seed=5,
        kv_cache_memory_bytes=1_500_000_000,
    )
    with pytest.raises(SystemExit):
        parse("--max-num-seqs", "1.5")


def test_without_flags_the_defaults_are_those_of_the_class() -> None:
    assert EngineArgs.from_cli_args(parse("--model", "m")) == EngineArgs(model="m")
    parser = argparse.ArgumentParser()
    group = parser.add_argument_group("engine")
    AsyncEngineArgs.add_cli_args(group).set_defaults(model="m")
    args = parser.parse_args(["--enable-log-requests"])
    assert AsyncEngineArgs.from_cli_args(args) == AsyncEngineArgs("m", enable_log_requests=True)


def test_a_flag_is_not_abbreviated_and_a_model_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse("--model", "m", "--max-model", "77")
    assert "--max-model" in capsys.readouterr().err
    with pytest.raises(ValueError, match="model is None; give a directory"):
        EngineArgs.from_cli_args(parse())


NEUTRAL = {
    "enable_chunked_prefill": True,
    "logprobs_mode": "raw_logprobs",
    "load_format": "gguf",
    "chat_template": None,
    "task": "generate",
    "runner": "generate",
    "hf_overrides": {},
    "compilation_config": {"level": 3},
    "guided_decoding_backend": "xgrammar",
    "limit_mm_per_prompt": {},
    "distributed_executor_backend": "mp",
    "served_model_name": "any",
    "max_seq_len_to_capture": 8192,
    "speculative_config": None,
    "enable_sleep_mode": True,
}


def test_options_at_a_neutral_value_are_taken() -> None:
    args = EngineArgs(model="/no/such.gguf", **NEUTRAL)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="model not found: /no/such"):
        LLM(**dataclasses.asdict(args))


@pytest.mark.parametrize(
    "option",
    [
        {"enable_chunked_prefill": False},
        {"logprobs_mode": "processed_logits"},
        {"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}},
        {"task": "reward"},
        {"hf_overrides": {"rope_theta": 1}},
        {"load_format": "safetensors"},
        {"max_logprobs": -2},
        {"profiler_config": {"colour": 1}},
        {"profiler_config": {"profiler": "cuda"}},
        {"kv_cache_memory": 1, "kv_cache_memory_bytes": 1},
    ],
)
def test_an_option_that_asks_for_something_else_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(option))):
        EngineArgs(model="m.gguf", **option).make_runner()


def test_each_neutral_option_says_what_it_takes() -> None:
    for one in dataclasses.fields(VllmOptions):
        assert one.default in one.metadata["taken"], one.name
        assert EngineArgs(model="m", **{one.name: one.default}) == EngineArgs(model="m")


def test_prompts_of_vllms_types_are_served() -> None:
    text: PromptType = TextPrompt(prompt="hello")
    tokens: PromptType = TokensPrompt(prompt_token_ids=list(b"hello"))
    null = {"prompt": "hello", "multi_modal_data": None, "add_special_tokens": None}
    with make_llm() as llm:
        outputs = llm.generate([text, tokens, null], GREEDY, use_tqdm=False)
    first, *others = tokens_of(outputs)
    assert outputs[0].prompt == "hello" and outputs[1].prompt is None
    assert all(one == first for one in others)


def test_arguments_of_vllms_calls_are_taken_at_their_neutral_value(llm: LLM) -> None:
    llm.generate("a", GREEDY, use_tqdm=False, lora_request=None, priority=None)
    with pytest.raises(ValueError, match="trace_headers is not served"):
        llm.generate("a", GREEDY, use_tqdm=False, trace_headers={"a": "b"})
    with pytest.raises(TypeError, match="no argument 'lora'"):
        llm.generate("a", GREEDY, use_tqdm=False, lora=None)


def test_sampling_params_are_copied_and_made_of_optional_values() -> None:
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, temperature=0.5)
    copy = params.clone()
    copy.stop.append("b")  # type: ignore[union-attr]
    copy.logit_bias[2] = 1.0  # type: ignore[index]
    assert (params.stop, params.logit_bias) == (["a"], {1: 2.0})
    assert copy.temperature == 0.5
    made = SamplingParams.from_optional(
        n=None, temperature=None, top_p=0.5, max_tokens=None, logit_bias={"7": 900}
    )
    assert made == SamplingParams(top_p=0.5, max_tokens=None, logit_bias={7: 100})


def test_pooling_params_are_no_sampling_params() -> None:
    params = PoolingParams(dimensions=8)
    assert params.clone() == params
    with make_llm() as llm, pytest.raises(TypeError, match="PoolingParams; give SamplingParams"):
        llm.generate("a", params)  # type: ignore[arg-type]


def test_the_queues_of_the_first_engine_are_there_for_those_who_look(engine: LLMEngine) -> None:
    for i in range(3):
        engine.add_request(str(i), "hello", GREEDY)
    waiting = [group.request_id for group in engine.scheduler.waiting]
    assert (waiting, engine.scheduler.running) == (["0", "1", "2"], [])
    engine.step()
    assert len(engine.scheduler.running) == 3
    assert engine.scheduler.waiting == engine.scheduler.swapped == []
    run(engine)
    assert engine.scheduler == ([], [], [])


def test_the_tokenizer_is_one_of_transformers(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is llm.llm_engine.tokenizer is llm.llm_engine.get_tokenizer()
    assert tokenizer.encode("hello", add_special_tokens=False) == list(b"hello")
    assert tokenizer.decode(list(b"hello")) == "hello"
    messages = [{"role": "user", "content": "hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    (rendered,) = llm.chat(messages, GREEDY, use_tqdm=False)  # type: ignore[arg-type]
    assert rendered.prompt == text


async def test_an_async_engine_is_used_as_vllms() -> None:
    engine = make_async_engine()
    assert (await engine.get_tokenizer()).encode("a", add_special_tokens=False) == [97]
    await engine.check_health()
    outputs = [
        output
        async for output in engine.generate(
            request_id=random_uuid(), prompt="hello", sampling_params=GREEDY, lora_request=None
        )
    ]
    assert outputs[-1].finished and engine.is_running
    engine.shutdown()
    engine.shutdown()
    assert engine.errored and not engine.is_running
    with pytest.raises(signalbox.EngineDeadError):
        await engine.check_health()


def test_models_are_registered_with_ours() -> None:
    from signalbox_worker.models import ModelSpec, model_spec

    spec = ModelSpec("NamedForCausalLM", read_config=dict, build=lambda *_: None)  # type: ignore[arg-type,return-value]
    ModelRegistry.register_model("NamedForCausalLM", spec)
    assert model_spec({"architectures": ["NamedForCausalLM"]}) is spec
    assert {"LlamaForCausalLM", "NamedForCausalLM"} <= ModelRegistry.get_supported_archs()
    with pytest.raises(TypeError, match="add_a_model"):
        ModelRegistry.register_model("Other", dict)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'Other' is registered with a spec of"):
        ModelRegistry.register_model("Other", spec)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--model", "m", "--port", "1"], ["serve", "--port", "1", "--", "m"]),
        (["--model=m", "--model-impl", "x"], ["serve", "--model-impl", "x", "--", "m"]),
        (["m", "--simulate"], ["serve", "m", "--simulate"]),
    ],
)
def test_the_api_server_is_serve(given: list[str], expected: list[str]) -> None:
    assert serve_arguments(given) == expected


def test_the_api_servers_module_is_a_program() -> None:
    command = [sys.executable, "-m", "signalbox.entrypoints.openai.api_server"]
    done = subprocess.run(
        [*command, "--model", "/no/such.gguf", "--max-num-seqs", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.startswith("signalbox serve: --max-num-seqs")


def test_an_engine_that_refers_to_itself_is_ended_when_an_example_cleans_up() -> None:
    llm = make_llm()
    llm.__dict__["again"] = llm
    is_there = ref(llm)
    del llm
    cleanup_dist_env_and_memory()
    assert is_there() is None


@pytest.mark.parametrize(
    ("vector", "shown"),
    [
        ([0.5, -1.0], "Embeddings: [0.5, -1.0] (size=2)\n"),
        ([0.5] * 9, "Embeddings: [0.5, 0.5, 0.5, 0.5, ...] (size=9)\n"),
    ],
)
def test_a_vector_is_printed_by_its_first_numbers(
    vector: list[float], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_embeddings(vector)
    assert capsys.readouterr().out == shown
