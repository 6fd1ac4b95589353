"""What is not served is refused by name, for requests as for engines."""

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox import LLM, EngineArgs, SamplingParams
from signalbox.llm.engine_options import SERVICE_ONLY
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from signalbox_worker.service.worker_settings import EngineSettings
from tests.signalbox.llm.make import GREEDY, assert_at_rest, make_llm


@pytest.mark.parametrize(
    "field",
    [
        {"logits_processors": [print]},
        {"guided_decoding": {"json": {}}},
        {"detokenize": False},
        {"spaces_between_special_tokens": False},
    ],
)
def test_a_sampling_field_that_is_not_served_is_refused(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(
        ValueError, match=rf"sampling_params\.{name} is not served; (leave it|give)"
    ):
        SamplingParams(**field)


def test_neutral_values_are_accepted() -> None:
    SamplingParams(
        presence_penalty=0.0,
        frequency_penalty=0,
        repetition_penalty=1,
        n=2,
        best_of=2,
        logit_bias={},
        bad_words=[],
        prompt_logprobs=None,
    )


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"temperature": 2.5}, r"temperature: allowed: \[0, 2\]; given: 2.5"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, r"top_p: allowed: \(0, 1\]; given: 0.0"),
        ({"top_k": -2}, "top_k: allowed: at least 0; given: -2"),
        ({"min_p": 1.5}, "min_p"),
        ({"n": 0}, r"n: allowed: \[1, 64\]; given: 0"),
        ({"max_tokens": 0}, "max_tokens: allowed: at least 1; given: 0"),
        ({"min_tokens": 17}, "min_tokens is 17; it must be at most max_tokens, 16"),
        ({"min_tokens": -1}, "min_tokens: .*; given: -1"),
        ({"logprobs": -2}, "logprobs: allowed: at least -1; given: -2"),
        ({"seed": -7}, "seed: .*; given: -7"),
        ({"seed": 1 << 64}, "seed: .*; given: 18446744073709551616"),
        ({"stop": ""}, "stop: allowed: strings of 1 to 1024 bytes; given: ''"),
        ({"presence_penalty": -2.5}, r"presence_penalty: .*; given: -2.5"),
        ({"repetition_penalty": 0}, r"repetition_penalty: allowed: \(0, 10\]; given: 0.0"),
        ({"typical_p": 0.0}, "typical_p"),
        ({"prompt_logprobs": -2}, "prompt_logprobs: .*; given: -2"),
        ({"logit_bias": {5: 101}}, "logit_bias.bias: .*; given: 101"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"bad_words": ["ok", " "]}, "bad_words: .*; given: ' '"),
        (
            {"logprob_token_ids": [5] * 129},
            "logprob_token_ids: .* at most 128; given: .*129",
        ),
        ({"logprob_token_ids": [5], "logprobs": 2}, "logprobs is 2; with logprob_token_ids"),
        ({"logprob_token_ids": [5], "use_beam_search": True}, "logprob_token_ids: .*beam_search"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0"),
        ({"prediction": "x", "speculation": False}, "prediction: .*none with speculation: false"),
    ],
)
def test_a_value_out_of_range_is_refused(field: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**field)


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"n": 1.5},
        {"seed": "x"},
        {"max_tokens": 2.0},
        {"ignore_eos": 1},
        {"stop": [1]},
        {"stop_token_ids": ["x"]},
        {"logit_bias": [(1, 2)]},
        {"logit_bias": {1: "x"}},
        {"bad_words": [1]},
        {"allowed_token_ids": [1.5]},
        {"output_kind": "delta"},
        {"truncate_prompt_tokens": "all"},
        {"prediction": ["x"]},
        {"speculation": 1},
        {"no_such_field": 1},
    ],
)
def test_a_value_of_another_type_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(field))):
        SamplingParams(**field)


def test_fields_are_those_of_the_router() -> None:
    params = SamplingParams(
        n=np.int64(2),  # type: ignore[arg-type]
        top_k=-1,
        seed=-1,
        stop="end",
        stop_token_ids=[3],
        max_tokens=None,
        temperature=1,
    )
    fields = params.fields()
    assert fields["top_k"] == 0 and fields["stop"] == ("end",) and fields["stop_token_ids"] == (3,)
    assert type(fields["n"]) is int and type(fields["temperature"]) is float
    assert "seed" not in fields and "max_tokens" not in fields


def test_params_that_are_changed_are_checked_again() -> None:
    params = SamplingParams()
    params.temperature = 3.0
    with make_llm() as llm, pytest.raises(ValueError, match="temperature"):
        llm.generate("hello", params, use_tqdm=False)


def test_tokens_and_lengths_are_checked_against_the_model() -> None:
    with make_llm(max_model_len=64) as llm:
        for token_id in (-1, 512, 2**40):
            for fields in (
                {"stop_token_ids": [token_id]},
                {"allowed_token_ids": [token_id]},
                {"logprob_token_ids": [token_id]},
                {"logit_bias": {token_id: 1}},
            ):
                (name,) = fields
                with pytest.raises(ValueError, match=rf"{name}.*ids in \[0, 512\).*: {token_id}$"):
                    llm.generate("hello", SamplingParams(**fields), use_tqdm=False)
            with pytest.raises(ValueError, match=rf"ids in \[0, 512\), .*; given: {token_id}$"):
                llm.generate([[token_id]], use_tqdm=False)
        with pytest.raises(ValueError, match=r"truncate_prompt_tokens: allowed: \[1, 64\]"):
            llm.generate("hello", SamplingParams(truncate_prompt_tokens=65), use_tqdm=False)


@pytest.mark.parametrize(
    "option",
    [
        {"tensor_parallel_size": 0},
        {"load_format": "tensorizer"},
        {"model_impl": "other"},
        {"quantization": "marlin"},
        {"tokenizer_mode": "slow"},
        {"pipeline_layer_partition": "1,2"},
        {"fully_sharded_loras": True},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"preemption_mode": "drop"},
        {"scheduling_policy": "lottery"},
        {"scheduling_policy": "no_such_module:Class"},
        {"dtype": "int8"},
        {"device": "tpu"},
        {"block_size": 24},
        {"swap_space": -1},
        {"swap_space": float("nan")},
        {"kv_cache_memory": 0},
        {"gpu_memory_utilization": 1.5},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 8},
        {"max_model_len": 1},
        {"num_threads": 0},
        {"tokenizer": "org/elsewhere"},
    ],
)
def test_an_option_that_is_not_served_is_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(
        ValueError, match=name.replace("kv_cache_memory", "kv_cache_(memory|bytes)")
    ):
        LLM("no/such/model.gguf", **option)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="'max_num_sequences'; did you mean max_num_seqs"):
        LLM("no/such/model.gguf", max_num_sequences=3)
    with pytest.raises(TypeError, match="max_num_sequences"):
        EngineArgs(model="x", max_num_sequences=3)  # type: ignore[call-arg]


def test_each_setting_of_worker_and_scheduler_is_an_option_or_has_a_reason() -> None:
    refused = set(SERVICE_ONLY)
    options = {one.metadata.get("setting", one.name) for one in fields(EngineArgs)}
    settings = EngineSettings.model_fields.keys() | SchedulingSettings.model_fields.keys()
    assert settings - refused - options == set()
    assert refused <= settings
    assert not refused & {one.name for one in fields(EngineArgs)}
    for name in refused | {"worker_wait", "tls_key", "http_port"}:
        with pytest.raises(TypeError, match=f"LLM has no option '{name}': "):
            LLM("no/such/model.gguf", **{name: 1})


def test_options_reach_worker_and_scheduler() -> None:
    args = EngineArgs(
        "m.gguf",
        sampling_backend="torch",
        linear_backend="torch",
        model_plugin="a, b",
        grammar_memory=7,
        watermark=0.25,
        prefill_spread_steps=3,
        num_gpu_blocks_override=9,
        max_steps_in_flight=1,
        log_stats_interval=2.5,
        kv_cache_memory_bytes=12345,
    )
    settings, core = args.settings(), args.core_config()
    assert (settings.sampling_backend, settings.linear_backend) == ("torch", "torch")
    assert settings.plugins == ("a", "b")
    assert settings.kv_cache_bytes == 12345
    scheduling = core.scheduling
    assert (scheduling.watermark, scheduling.prefill_spread_steps) == (0.25, 3)
    assert (scheduling.max_steps_in_flight, scheduling.num_gpu_blocks_override) == (1, 9)
    assert scheduling.log_stats_interval == 2.5
    assert core.grammar_bytes == 7 << 20
    with pytest.raises(ValueError, match=r"^sampling_backend is 'abacus'"):
        LLM("m.gguf", sampling_backend="abacus")


def test_an_old_name_of_an_option_works_and_its_new_one_is_told() -> None:
    with pytest.warns(FutureWarning, match="ageing is an old name.* its name is priority_aging_s"):
        args = EngineArgs("m.gguf", ageing=3, prefill_spread=2)
    settings = args.settings()
    assert (settings.priority_aging_s, settings.prefill_spread_steps) == (3, 2)
    with pytest.raises(ValueError, match="ageing and priority_aging_s are the same option; give"):
        EngineArgs("m.gguf", ageing=3, priority_aging_s=4)


def test_what_is_set_of_blocks_and_steps_holds() -> None:
    scheduling = SchedulingSettings(num_gpu_blocks_override=20, max_steps_in_flight=1)
    config = CoreConfig(scheduling=scheduling, grammar_bytes=1 << 20)
    with make_llm(config) as llm:
        outputs = llm.generate(["hello", "world"], GREEDY, use_tqdm=False)
        assert all(len(output.outputs[0].token_ids) == 16 for output in outputs)
        assert llm.llm_engine._core.scheduler.blocks.gpu.num_blocks == 20
        assert_at_rest(llm.llm_engine)


def test_the_signature_of_llm_has_the_options() -> None:
    parameters = inspect.signature(LLM).parameters
    assert {one.name for one in fields(EngineArgs)} == set(parameters)
    assert parameters["max_num_seqs"].default == 256
    assert parameters["disable_log_stats"].default is True


def test_options_that_ask_for_nothing_are_accepted() -> None:
    with pytest.raises(FileNotFoundError, match="no/such/model"):
        LLM(
            "/no/such/model.gguf",
            tokenizer_mode="auto",
            trust_remote_code=False,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            quantization=None,
            enable_lora=False,
        )


def test_a_tokenizer_of_another_place_is_used() -> None:
    files = tokenizer_files(vocab_size=300, max_model_len=64)
    with make_llm(CoreConfig(tokenizer_files=files)) as llm:
        (output,) = llm.generate("hello", GREEDY, use_tqdm=False)
        assert output.prompt_token_ids == list(b"hello")


def test_a_tokenizer_of_another_vocabulary_is_refused() -> None:
    files = tokenizer_files(vocab_size=600, max_model_len=64)
    with pytest.raises(ValueError, match="token ids up to 599; simulated knows ids below 512"):
        make_llm(CoreConfig(tokenizer_files=files))


def test_a_tokenizer_is_read_from_a_directory(tmp_path: Path) -> None:
    for name, content in tokenizer_files(vocab_size=300, max_model_len=64).items():
        (tmp_path / name).write_bytes(content)
    files = EngineArgs(model="m", tokenizer=str(tmp_path)).core_config().tokenizer_files
    assert files is not None and "tokenizer.json" in files
    assert EngineArgs(model="m", tokenizer="m").core_config().tokenizer_files is None


def test_importing_signalbox_loads_neither_torch_nor_grpc_nor_numpy() -> None:
    script = "import sys, signalbox; heavy = ('torch', 'grpc', 'numpy')"
    script += "; print([m for m in heavy if m in sys.modules])"
    script += "; from signalbox import LLM; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["[]", "False"]
    import signalbox

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = signalbox.no_such_name


@pytest.mark.parametrize("task", ["embed", "embedding", "classify", "score"])
def test_vllms_earlier_tasks_choose_the_runner_that_pools(task: str) -> None:
    assert EngineArgs("m", task=task).settings().runner == "pooling"
    assert EngineArgs("m", task="generate").settings().runner == "auto"
