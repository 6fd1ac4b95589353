"""Each flag of another server does what its row says: an alias, without effect, or refused."""

import os
import re
from pathlib import Path

import pytest

from signalbox import cli
from signalbox.settings.all_settings import SERVICES
from signalbox.settings.flag_kinds import ONE, OPTIONAL, SWITCH, Alias, NoEffect, Refused
from signalbox.settings.flags.service_flags import spelling_of, to_environment, to_flags
from signalbox.settings.foreign_flags import FOREIGN_FLAGS, other_names
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import RunSettings, ServeCommandSettings
from signalbox.settings.setting_names import translate
from signalbox.settings.sources import SettingsError, Source
from signalbox.settings.vllm_flags import SHORT_FLAGS, VLLM_FLAGS
from signalbox_router.config import RouterSettings
from signalbox_rpc.settings.service_settings import flag_name
from signalbox_scheduler.config import SchedulerSettings
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.service.worker_settings import WorkerSettings

pytestmark = pytest.mark.slow

PAGE = Path("docs", "reference", "vllm_flags.md")
SECRET = "sk-do-not-show"
FIELDS = {field for service in SERVICES for field in service.model_fields}
ALIASES = [name for name, flag in FOREIGN_FLAGS.items() if isinstance(flag, Alias)]
WITHOUT_EFFECT = [name for name, flag in FOREIGN_FLAGS.items() if isinstance(flag, NoEffect)]
REFUSED = [name for name, flag in FOREIGN_FLAGS.items() if isinstance(flag, Refused)]


def parse(*arguments: str) -> tuple[ServeCommandSettings, list[str]]:
    """Returns the settings of `signalbox serve ARGUMENTS`, and what is told."""
    told: list[str] = []
    return load(ServeCommandSettings, flags_of(*arguments), tell=told.append), told


def flags_of(*arguments: str) -> dict[str, object]:
    options = cli.parse(["serve", *arguments])
    return {name: value for name, value in options.items() if name not in ("command", "run")}


def arguments_of(name: str) -> list[list[str]]:
    """Returns what gives the flag, with a value that is accepted, in each of its spellings."""
    flag = FOREIGN_FLAGS[name]
    spellings = [spelling_of(name), *other_names(name)]
    values = [*flag.values] if isinstance(flag, NoEffect | Alias) else []
    if flag.takes == SWITCH and "false" in values and "true" not in values:
        named = [flag_name("no" + one[1:]) for one in spellings if one.startswith("--")]
        return [[one] for one in (*named, *flag.off)]
    if flag.takes in (SWITCH, OPTIONAL):
        return [[one] for one in spellings]
    return [[one, values[0] if values else "7"] for one in spellings]


@pytest.fixture(autouse=True)
def _without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("SIGNALBOX_", "VLLM_"))]:
        monkeypatch.delenv(name)


def test_no_row_hides_a_setting_or_another_row() -> None:
    assert not FOREIGN_FLAGS.keys() & FIELDS
    spellings = [one for name in FOREIGN_FLAGS for one in (spelling_of(name), *other_names(name))]
    assert len(spellings) == len(set(spellings))
    assert set(SHORT_FLAGS.values()) <= FIELDS | VLLM_FLAGS.keys()


@pytest.mark.parametrize("name", ALIASES)
def test_each_spelling_of_an_alias_sets_the_same_setting(name: str) -> None:
    found = [
        translate(
            Source(values=flags_of(*given)), ServeCommandSettings.model_fields, tell=pytest.fail
        )
        for given in arguments_of(name)
    ]
    flag = FOREIGN_FLAGS[name]
    assert isinstance(flag, Alias)
    assert found[0].keys() == {flag.setting} <= ServeCommandSettings.model_fields.keys()
    assert all(one == found[0] for one in found)


def test_the_page_names_the_flags_that_are_the_same() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("same name and meaning")[2]
    same = set(re.findall(r"`(--[\w-]+)`", section.partition("\n## ")[0]))
    assert same - {"--config"} <= {flag_name(name) for name in FIELDS}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_flag_without_effect_says_so_and_changes_nothing(name: str) -> None:
    plain, _ = parse("--simulate")
    for given in arguments_of(name):
        settings, told = parse("--simulate", *given)
        assert settings == plain
        assert told == [f"{flag_name(name)} has no effect: {FOREIGN_FLAGS[name].why}"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", [name for name in WITHOUT_EFFECT if getattr(FOREIGN_FLAGS[name], "values", ())]
)
def test_a_value_that_would_change_something_is_refused_with_a_remedy(name: str) -> None:
    flag = FOREIGN_FLAGS[name]
    assert isinstance(flag, NoEffect) and flag.otherwise
    other = [flag_name(name if "false" in flag.values else f"no_{name}")]
    given = other if flag.takes == SWITCH else [flag_name(name), "other"]
    with pytest.raises(SettingsError, match="is not served: ") as caught:
        parse("--simulate", *given)
    assert flag.otherwise in str(caught.value)
    assert given[0] in str(caught.value)


@pytest.mark.parametrize("form", ["{} secret", "{}=secret", "{}"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_flag_is_named_with_its_remedy_and_without_its_value(
    name: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    takes = FOREIGN_FLAGS[name].takes
    if takes == SWITCH and "=" in form:
        return
    for spelling in (spelling_of(name), *other_names(name)):
        with pytest.raises(SettingsError) as caught:
            parse("--simulate", *form.format(spelling).split())
        named = spelling if takes == ONE else flag_name(name)
        assert f"{named} is not served: " in str(caught.value)
        assert "secret" not in str(caught.value) + capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--enable-prefix-caching"], {"prefix_caching": True}),
        (["--no-enable-prefix-caching"], {"prefix_caching": False}),
        (["-dp", "3"], {"workers": 3}),
        (["--data-parallel-size=2"], {"workers": 2}),
        (["--no-async-scheduling"], {"max_steps_in_flight": 1}),
        (["--disable-log-requests"], {"log_requests": "none"}),
        (["--enable-log-requests"], {"log_requests": "ends"}),
        (["--disable-log-stats"], {"log_stats_interval": 0}),
        (["--otlp-traces-endpoint", "http://a:1"], {"trace_exporter": "otlp=http://a:1"}),
        (["--ssl-certfile=c", "--ssl-keyfile=k"], {"tls_cert": "c", "tls_key": "k"}),
        (["--max-num-seqs", "1k"], {"max_num_seqs": 1000}),
        (["--max_num_seqs", "1K"], {"max_num_seqs": 1024}),
        (["--max-model-len=25.6k"], {"max_model_len": 25_600}),
        (
            ["--allowed-origins", '["http://a", "http://b"]'],
            {"allowed_origins": "http://a,http://b"},
        ),
        (["--allowed-origins", "*"], {"allowed_origins": "*"}),
        (["--max-model-len=auto"], {"max_model_len": None}),
        (["--enable-lora", "--adapter-dir", "d"], {"adapter_dir": Path("d")}),
        (["--port", "8001", "--grpc-port", "1"], {"http_port": 8001, "grpc_port": 1}),
        (
            ["--spec-method", "ngram", "--num-speculative-tokens", "3"],
            {"speculation_config": SpeculationConfig(num_tokens=3, min_match=5, max_match=5)},
        ),
        (
            ["-sc", '{"method": "suffix"}', "--no-speculation"],
            {"speculation_config": SpeculationConfig()},
        ),
    ],
)
def test_vllms_names_set_ours(arguments: list[str], expected: dict[str, object]) -> None:
    settings, told = parse("--simulate", *arguments)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert told == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m", "-tp", "2"], {"tensor_parallel_size": 2}),
        (["--model", "m", "--dtype", "half"], {"model": "m", "dtype": "float16"}),
        (["m", "--dtype=float"], {"dtype": "float32"}),
        (["m", "-q", "int8"], {"quantization": "int8"}),
        (["m", "--kv-cache-memory-bytes", "2G"], {"kv_cache_memory": 2.0}),
        (["m", "--load-format", "safetensors"], {"load_format": "auto"}),
        (["m", "--model-impl", "vllm"], {"model_impl": "signalbox"}),
        (["m", "--task", "embed"], {"runner": "pooling"}),
        (["m", "--task=generate"], {"runner": "generate"}),
        (["m", "--attention-backend", "TRITON_ATTN"], {"attention_backend": "triton"}),
    ],
)
def test_vllms_names_of_a_models_settings_set_ours(
    arguments: list[str], expected: dict[str, object]
) -> None:
    settings, told = parse(*arguments)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert told == []
    worker = cli.parse(["worker", *to_flags(settings, WorkerSettings)])
    for name in expected.keys() & worker.keys():  # what is not told is the default
        assert str(worker[name]) == str(expected[name])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-hf", "org/name:Q8_0"], {"model": "org/name:Q8_0"}),
        (["-m", "m", "-a", "a,b"], {"model": "m", "served_model_name": ("a", "b")}),
        (["m", "-c", "8192", "-np", "4"], {"max_model_len": 8192, "max_num_seqs": 4}),
        (["m", "-c", "0", "-t", "-1"], {"max_model_len": None, "num_threads": None}),
        (["m", "-b", "512", "-t", "3"], {"max_num_batched_tokens": 512, "num_threads": 3}),
        (["m", "-ngl", "0"], {"device": "cpu"}),
        (["-ngl", "99", "m"], {"device": "auto"}),
        (["m", "-ctk", "q8_0", "-ctv", "q8_0"], {"kv_cache_dtype": "int8"}),
        (["m", "-cram", "2048"], {"swap_space": 2.0}),
        (["m", "--embedding", "--rerank"], {"runner": "pooling"}),
        (["m", "--log-disable"], {"log_level": "error"}),
        (["m", "--no-cache-prompt"], {"prefix_caching": False}),
        (["m", "--spec-default"], {"speculation": True}),
        (["m", "--spec-type", "none"], {"speculation_config": SpeculationConfig()}),
        (
            ["m", "--speculative_config.method=ngram", "--speculative-config.prompt_lookup_max=7"],
            {"speculation_config": SpeculationConfig(num_tokens=8, min_match=7, max_match=7)},
        ),
        (
            ["m", "-sc.method=ngram", "-sc.prompt_lookup_max", "7"],
            {"speculation_config": SpeculationConfig(num_tokens=8, min_match=7, max_match=7)},
        ),
        (
            ["m", "--spec-type", "ngram-mod", "--draft-max", "16", "--spec-ngram-mod-n-match=7"],
            {"speculation_config": SpeculationConfig(num_tokens=16, min_match=7, max_match=7)},
        ),
        (
            ["m", "--spec-type", "draft-simple", "-md", "s.gguf", "--draft-max", "4"],
            {"speculation_config": SpeculationConfig(num_tokens=4, min_match=8, model="s.gguf")},
        ),
        (
            ["m", "--spec-type", "draft-mtp", "--draft-max", "2"],
            {"speculation_config": SpeculationConfig(num_tokens=2, min_match=8, mtp=True)},
        ),
        (["m", "--spec-model", "org/small"], {"draft_model": "org/small"}),
        (["m", "--ssl-cert-file=c", "--ssl-key-file=k"], {"tls_cert": "c", "tls_key": "k"}),
        (
            ["m", "--temp", "0.5", "--top-k", "40", "-n", "-1"],
            {"override_generation_config": '{"temperature": 0.5, "top_k": 40}'},
        ),
    ],
)
def test_llama_cpps_names_set_ours(arguments: list[str], expected: dict[str, object]) -> None:
    settings, told = parse(*arguments)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert told == []


@pytest.mark.parametrize("given", [["-fa"], ["-fa", "on"], ["-fa=off"], ["--flash-attn", "auto"]])
def test_a_value_that_may_be_left_out_is_never_the_model(given: list[str]) -> None:
    settings, told = parse(*given, "m")
    assert settings.model == "m"
    assert len(told) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m", "-ctk", "q8_0", "-ctv", "f32"], "are the same setting"),
        (["m", "-ngl", "many"], "it is no number"),
        (["m", "--temp", "warm"], "it is no number"),
        (["m", "--max-model-len", "2x"], "--max-model-len is '2x': give a whole number"),
        (["--simulate", "--max-num-seqs", "1.5K"], "--max-num-seqs is '1.5K': give a whole number"),
        (["--simulate", "--enable-log-requests", "--log-requests=none"], "are the same setting"),
        (["m", "--model", "n"], "MODEL and --model are the same setting"),
        (["m", "-hf", "a/b"], "MODEL and --hf-repo are the same setting"),
        (["m", "--distributed-executor-backend", "ray"], "--placement ray starts"),
        (["m", "--kv-cache-memory-bytes", "lots"], "it is no number"),
        (["m", "--quantization", "marlin"], "--quantization is 'marlin'"),
        (["m", "-pp", "0"], "--pipeline-parallel-size is '0'"),
        (["m", "--spec-type", "draft-eagle3"], "method 'draft-eagle3' is not served: layers"),
        (["m", "--speculative-config", '{"method": "eagle3"}'], "method 'eagle3' is not served"),
        (["m", "-sc", "[]"], "it must be a JSON object"),
        (["m", "-sc", "{}"], "it has no method; method may be ngram or suffix"),
        (["m", "-sc.colour=blue"], "it is no JSON"),
        (["m", "-sc", '{"num_speculative_tokens": 2}'], "it has no method; method may be"),
        (["m", "-pp", "2", "--pipeline-layer-partition", "1,2,3"], "has 3 numbers, and pipeline_"),
        (["m", "--pipeline-layer-partition", "3,0"], "whole numbers of at least 1, with commas"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments: list[str], expected: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(expected).replace("\\ ", " ")) as caught:
        parse(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "names", "model"),
    [
        (["m", "--served-model-name", "a", "b"], ("a", "b"), "m"),
        (["--served-model-name", "a", "m"], ("a",), "m"),
        (["--served-model-name", "a", "--served-model-name", "b", "--model", "m"], ("a", "b"), "m"),
        (["--served-model-name=a,b", "--", "m"], ("a", "b"), "m"),
        (["--simulate", "--served-model-name", "a", "b"], ("a", "b"), ""),
    ],
)
def test_several_names_are_those_of_one_model(
    arguments: list[str], names: tuple[str, ...], model: str | None
) -> None:
    settings, _ = parse(*arguments)
    assert (settings.served_model_name, settings.model) == (names, model)
    router = cli.parse(["router", *to_flags(settings, RouterSettings)])
    assert tuple(router["served_model_name"]) == names


def test_keys_go_to_the_router_in_its_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, told = parse("--simulate", "--api-key", SECRET, "two")
    assert "list of processes" in told[0]
    assert not any(SECRET in text for text in (repr(settings), *told))
    for service in (RouterSettings, WorkerSettings, SchedulerSettings):
        assert not any(SECRET in flag for flag in to_flags(settings, service))
    assert to_environment(settings, WorkerSettings) == {}
    variables = to_environment(settings, RouterSettings)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    config = load(RouterSettings, {})
    assert [key.get_secret_value() for key in config.api_key] == [SECRET, "two"]
    assert SECRET not in repr(config)


@pytest.mark.parametrize("given", ["1", "True", "false"])
def test_vllms_variable_allows_adapters_to_be_loaded(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", given)
    settings, told = parse("--simulate", "--adapter-dir", "d")
    assert settings.allow_adapter_loading is (given != "false")
    assert told == []


@pytest.mark.parametrize("variable", ["VLLM_API_KEY", "SIGNALBOX_API_KEY"])
def test_a_key_in_the_environment_is_asked_for(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, SECRET)
    settings, told = parse("--simulate")
    assert [key.get_secret_value() for key in settings.api_key] == [SECRET]
    assert told == []


def test_an_empty_key_is_refused_and_leaves_no_port_open(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--api-key", ""], ["--api-key", SECRET, " "]):
        with pytest.raises(SettingsError, match="--api-key: it is empty") as refused:
            parse("--simulate", *arguments)
        assert SECRET not in str(refused.value)
    monkeypatch.setenv("SIGNALBOX_API_KEY", "")
    with pytest.raises(SettingsError, match="--api-key: it is empty"):
        parse("--simulate")


def test_a_file_without_a_key_asks_for_none(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("api-key:\nsimulate: true\n")
    assert parse("--config", str(path))[0].api_key == ()
    path.write_text("api-key: [123, a]\nsimulate: true\n")
    keys = [key.get_secret_value() for key in parse("--config", str(path))[0].api_key]
    assert keys == ["123", "a"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--simulate", "--api-key", f"{SECRET} b"],
        ["--simulate", f"--api-key={SECRET}\u00e9"],
        ["--api-key", "k", SECRET],
    ],
)
def test_no_message_has_a_key(arguments: list[str]) -> None:
    with pytest.raises(SettingsError, match="--api-key") as caught:
        parse(*arguments)
    assert SECRET not in str(caught.value)


def test_a_file_in_vllms_style_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "vllm.yaml"
    path.write_text(
        "model: m\nport: 8001\ntensor-parallel-size: 2\nmax-model-len: 8k\n"
        "enable-prefix-caching: false\ndisable-log-requests: true\nenable-chunked-prefill: true\n"
    )
    settings, told = parse("--config", str(path))
    assert (settings.model, settings.http_port, settings.max_model_len) == ("m", 8001, 8000)
    assert (settings.tensor_parallel_size, settings.prefix_caching) == (2, False)
    (line,) = told
    assert "enable_chunked_prefill has no effect" in line
    assert load(WorkerSettings, {"config": str(path)}).tensor_parallel_size == 2


def test_vllms_variables_are_read_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_USE_V1", "1")
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "secret")
    settings, told = parse("--simulate")
    assert settings.log_level == load(RunSettings, {"simulate": True}).log_level == "debug"
    assert told == ["VLLM_ATTENTION_BACKEND, VLLM_USE_V1 have no effect here"]
    monkeypatch.setenv("SIGNALBOX_LOG_LEVEL", "error")
    assert parse("--simulate")[0].log_level == "error"
