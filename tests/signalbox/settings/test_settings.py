"""Flags beat the environment, which beats the file, which beats the default."""

import inspect
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from signalbox.settings.all_settings import SERVICES
from signalbox.settings.flag_kinds import Refused
from signalbox.settings.flags.parser import CommandParser
from signalbox.settings.flags.service_flags import add_flags, to_flags
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import RunSettings, ServeSettings
from signalbox.settings.setting_names import EARLIER
from signalbox.settings.sources import SettingsError
from signalbox_router.config import RouterSettings
from signalbox_rpc.settings.service_settings import FilePath, Settings
from signalbox_scheduler.config import Disaggregation, SchedulerSettings
from signalbox_worker.service.worker_settings import WorkerSettings

COMMANDS = (RouterSettings, SchedulerSettings, WorkerSettings, ServeSettings)
PATHS = sorted(
    name
    for name, field in {k: v for one in COMMANDS for k, v in one.model_fields.items()}.items()
    if {Path, FilePath} & {field.annotation, *get_args(field.annotation)}
)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "PORT", "HTTP", "HTTP_PORT", "GRPC_PORT", "MAX_NUM_SEQS"):
        monkeypatch.delenv(f"SIGNALBOX_{name}", raising=False)


def write_config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "signalbox.yaml"
    path.write_text(text)
    return str(path)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_config(tmp_path, "port: 1\n")
    ports = [load(SchedulerSettings, {}).port, load(SchedulerSettings, {"config": config}).port]
    monkeypatch.setenv("SIGNALBOX_PORT", "2")
    ports.append(load(SchedulerSettings, {"config": config}).port)
    ports.append(load(SchedulerSettings, {"config": config, "port": "3"}).port)
    assert ports == [50052, 1, 2, 3]


def test_off_in_a_file_is_the_value_of_that_name(tmp_path: Path) -> None:
    config = write_config(tmp_path, "disaggregation: off\n")
    loaded = load(SchedulerSettings, {"config": config})
    assert loaded.disaggregation is Disaggregation.OFF


def test_the_file_can_be_named_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALBOX_CONFIG", write_config(tmp_path, "max-num-seqs: 7\n"))
    assert load(SchedulerSettings, {}).max_num_seqs == 7


def test_one_file_serves_several_commands(tmp_path: Path) -> None:
    config = write_config(tmp_path, "dtype: float32\nmax_live_requests: 9\nmodel: m\n")
    assert load(RouterSettings, {"config": config}).max_live_requests == 9
    assert load(WorkerSettings, {"config": config}).dtype == "float32"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no_such_setting: 1", "no setting is called no_such_setting"),
        ("- a\n- b", "expected `setting: value` lines"),
        ("port: [", "cannot read"),
        ("grpc_port: many", "--grpc-port is 'many'"),
        ("port: many", "--http-port is 'many'"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        load(RouterSettings, {"config": write_config(tmp_path, text)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["metrics_port", "seed", "max_num_seqs", "drain_timeout"])
@pytest.mark.parametrize("switch", ["no", "true"])
def test_a_number_is_no_switch(tmp_path: Path, name: str, switch: str) -> None:
    config = write_config(tmp_path, f"simulate: true\n{name}: {switch}\n")
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')} is .*: it is a number"):
        load(ServeSettings, {"config": config})


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_ca", "tls_client_ca", "api_keys"])
def test_an_empty_variable_turns_no_protection_off(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"SIGNALBOX_{name.upper()}", "")
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')} is ''"):
        load(RouterSettings, {})


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(SettingsError, match="no password") as refused:
        load(WorkerSettings, {"model": "m", "kv_store": "redis://worker:s3cret@localhost:6379"})
    assert "redis://worker:***@localhost:6379" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load(RouterSettings, {"config": str(tmp_path / "none.yaml")})


@pytest.mark.parametrize(
    ("settings_class", "flags", "expected"),
    [
        (SchedulerSettings, {"port": "70000"}, "--port is '70000'"),
        (RouterSettings, {"grpc_port": "70000"}, "--grpc-port is '70000'"),
        (RouterSettings, {"drain_timeout": "-1"}, "--drain-timeout is '-1'"),
        (SchedulerSettings, {"max_num_seqs": "0"}, "--max-num-seqs is '0'"),
        (ServeSettings, {"scheduling_policy": "lottery"}, "is 'lottery': .*fcfs.priority"),
        (SchedulerSettings, {"disaggregation": "auto"}, "is 'auto': .*, --role prefill and --role"),
        (SchedulerSettings, {"priority_aging_s": "inf"}, "--priority-aging-s is 'inf'"),
        (SchedulerSettings, {"max_queued_tokens": "0"}, "--max-queued-tokens is '0'"),
        (WorkerSettings, {"model": "m", "dtype": "int3"}, "--dtype is 'int3'"),
        (WorkerSettings, {"model": "m", "swap_space": "nan"}, "--swap-space is 'nan'"),
        (WorkerSettings, {"model": "m", "swap_space": "1e308"}, "--swap-space is '1e308'"),
        (WorkerSettings, {}, "give a MODEL"),
        (ServeSettings, {"model": "m", "simulate": True}, "takes no MODEL"),
        (ServeSettings, {"dtype": "float32", "simulate": True}, "--dtype has no effect with"),
        (ServeSettings, {"model": "m", "simulated_step_ms": 3}, "has no effect without"),
        (WorkerSettings, {"model": "m", "rank_host": "lo"}, "without --placement ray or env"),
        (
            WorkerSettings,
            {"model": "m", "placement": "environment", "placement_timeout": 3},
            "--placement-timeout has no effect without --placement ray",
        ),
        (WorkerSettings, {"model": "m", "runner": "pooling", "role": "decode"}, "leave --role out"),
        (
            WorkerSettings,
            {"simulate": True, "simulated_pooling": "mean", "role": "prefill"},
            "leave --role out",
        ),
        (
            WorkerSettings,
            {"model": "m", "role": "decode", "swap_space": 0},
            "--role decode takes swap space, .*; raise --swap-space",
        ),
        (WorkerSettings, {"placement": "ray", "simulate": True}, "no effect with --simulate"),
        (ServeSettings, {"model": "m", "placement": "environment"}, "use `signalbox worker`"),
        (ServeSettings, {"model": "m", "rank_port": 3}, "--rank-port has no effect without"),
        (
            ServeSettings,
            {"model": "m", "scheduler_host": "b"},
            "--scheduler-host has no effect without --placement ray",
        ),
        (
            ServeSettings,
            {"model": "m", "placement": "ray", "scheduler_host": "b"},
            "the scheduler would listen on b for workers without certificates; give --tls-cert,"
            " --tls-key, --tls-ca, --worker-tls-cert, --worker-tls-key, --worker-tls-ca, or"
            " --insecure",
        ),
        (
            ServeSettings,
            {"model": "m", "placement": "ray", "scheduler_host": "0.0.0.0", "insecure": True},
            "no address that a worker can call",
        ),
        (
            ServeSettings,
            {"model": "m", "placement": "ray", "worker_tls_ca": "ca.pem"},
            "--worker-tls-ca goes with --tls-cert",
        ),
        (
            ServeSettings,
            {"model": "m", "placement": "ray", "workers": 9, "rank_port": 65530},
            "9 ranks take as many ports from --rank-port 65530 on",
        ),
        (ServeSettings, {"simulate": True, "workers": 0}, "--workers is 0"),
        (ServeSettings, {"simulate": True, "workers": "1..4"}, "'1..4': give a fixed number; .*H"),
        (
            WorkerSettings,
            {"model": "m", "placement": "raytracer"},
            "it must be local, environment, ray or",
        ),
        (RouterSettings, {"scheduler": "https://a:1"}, "--scheduler is 'https://a:1': .*--tls-ca"),
        (RouterSettings, {"scheduler": "a:1,b"}, "--scheduler is 'a:1,b': 'b' is no HOST:PORT"),
        (WorkerSettings, {"simulate": True, "scheduler": "http://a:1"}, "leave http:// out"),
        (WorkerSettings, {"simulate": True, "advertise": "http://a"}, "--advertise is 'http://a'"),
        (WorkerSettings, {"simulate": True, "advertise": "a:x"}, "--advertise is 'a:x'"),
        (SchedulerSettings, {"host": "https://a"}, "--host is 'https://a': .*leave https:// out"),
        (ServeSettings, {"simulate": True, "host": "0.0.0.0:1"}, "--host is .* setting of its own"),
        (RouterSettings, {"grpc_port": 8000}, "--grpc-port and --http-port are both 8000"),
        (RouterSettings, {"port": 50051}, "are both 50051"),
        (RouterSettings, {"port": 1, "http_port": 3}, "--http-port are both.*; --grpc-port is"),
        (RouterSettings, {"port": 1, "http": False}, "--no-http turns off; --grpc-port is"),
        (RouterSettings, {"metrics_port": 8000}, "--http-port and --metrics-port are both 8000"),
        (SchedulerSettings, {"metrics_port": 50052}, "choose another --metrics-port"),
        (
            ServeSettings,
            {"simulate": True, "workers": 2, "grpc_port": 50051, "metrics_port": 50048},
            r"--grpc-port and --metrics-port \+ 3 are both 50051; choose another --metrics-port",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_flag(
    settings_class: type[Settings], flags: dict[str, object], expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        load(settings_class, flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PATHS)
def test_an_empty_path_is_refused_and_not_taken_for_the_current_directory(name: str) -> None:
    settings_class = next(one for one in COMMANDS if name in one.model_fields)
    with pytest.raises(SettingsError, match=f"--{name.replace('_', '-')} is '': it is empty"):
        load(settings_class, {name: ""})


def test_an_empty_generation_config_is_refused() -> None:
    with pytest.raises(SettingsError, match="--generation-config is ''"):
        load(WorkerSettings, {"model": "m", "generation_config": ""})


def test_what_is_off_or_picked_takes_no_port_from_others() -> None:
    assert load(RouterSettings, {"grpc_port": 8000, "http": False}).http_port == 8000
    picked = load(RouterSettings, {"grpc_port": 0, "http_port": 0, "metrics_port": 0})
    assert (picked.grpc_port, picked.http_port, picked.metrics_port) == (0, 0, 0)
    scheduler_and_worker = {"simulate": True, "workers": 1, "metrics_port": 50049}
    assert load(ServeSettings, scheduler_and_worker).takes_other_grpc_port
    with pytest.raises(SettingsError, match="both 50051"):
        load(ServeSettings, scheduler_and_worker | {"grpc_port": 50051})
    assert load(ServeSettings, scheduler_and_worker | {"metrics_port": 50052}).workers == 1


@pytest.mark.parametrize(
    ("flags", "environment", "ports"),
    [
        ({"port": "9000"}, {}, (50051, 9000)),
        ({"port": "9000", "grpc_port": "9001"}, {}, (9001, 9000)),
        ({"port": "9000"}, {"HTTP_PORT": "1"}, (50051, 9000)),
        ({"http_port": "9000"}, {"PORT": "9001"}, (50051, 9000)),
        ({"http_port": "1", "grpc_port": "2"}, {}, (2, 1)),
    ],
)
@pytest.mark.parametrize("settings_class", [ServeSettings, RouterSettings])
def test_port_is_that_of_http(
    settings_class: type[ServeSettings | RouterSettings],
    flags: dict[str, object],
    environment: dict[str, str],
    ports: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(f"SIGNALBOX_{name}", value)
    if settings_class is ServeSettings:
        flags = {"simulate": True, **flags}
    settings = load(settings_class, flags)
    assert (settings.grpc_port, settings.http_port) == ports


@pytest.mark.parametrize("off", ["off", "0", "False"])
def test_a_port_of_http_that_is_off_elsewhere_is_refused(
    off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIGNALBOX_HTTP", off)
    with pytest.raises(SettingsError, match="--no-http turns off; --grpc-port is"):
        load(RouterSettings, {"port": "9000"})
    assert load(RouterSettings, {"port": "9000", "http": True}).http_port == 9000


def test_a_flag_of_no_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="--prot"):
        load(SchedulerSettings, {"prot": 1})


@pytest.mark.parametrize("settings_class", SERVICES)
@pytest.mark.parametrize(
    "name",
    [
        "explain_history",
        "fair_input_weight",
        "fair_output_weight",
        "metrics_exporter",
        "num_cpu_blocks_override",
    ],
)
def test_a_setting_that_was_removed_is_named_with_its_remedy(
    name: str, settings_class: type[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = EARLIER[name]
    assert isinstance(removed, Refused)
    flag, remedy = f"--{name.replace('_', '-')}", f"is not served: {removed.remedy}"
    for arguments in ([], ["1"]):
        parser = CommandParser()
        add_flags(parser, settings_class)
        flags = vars(parser.parse_args([flag, *arguments]))
        with pytest.raises(SettingsError, match=f"^{flag} {remedy}"):
            load(settings_class, flags)
    with pytest.raises(SettingsError, match=f"{name} {remedy}"):
        load(settings_class, {"config": write_config(tmp_path, f"{name}: 1")})
    monkeypatch.setenv(f"SIGNALBOX_{name.upper()}", "1")
    with pytest.raises(SettingsError, match=f"the environment: {name} {remedy}"):
        load(settings_class, {})


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("ageing", "priority_aging_s", 3.0),
        ("prefill_spread", "prefill_spread_steps", 3),
        ("record", "recording_path", "3"),
    ],
)
def test_an_old_name_of_a_setting_works_and_its_new_one_is_told(
    old: str,
    new: str,
    value: object,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    parser = CommandParser()
    add_flags(parser, SchedulerSettings)
    flags = vars(parser.parse_args([f"--{old.replace('_', '-')}", "3"]))
    config = {"config": write_config(tmp_path, f"{old}: {value!r}")}
    assert getattr(load(SchedulerSettings, flags, tell=told.append), new) == value
    assert getattr(load(SchedulerSettings, config, tell=told.append), new) == value
    monkeypatch.setenv(f"SIGNALBOX_{old.upper()}", "3")
    assert getattr(load(SchedulerSettings, {}, tell=told.append), new) == value
    assert len(told) == 3 and all(line.endswith(f"; its name is {new}") for line in told)
    load(RouterSettings, {}, tell=told.append)
    assert len(told) == 3  # the router has no such setting
    with pytest.raises(SettingsError, match="are the same setting"):
        load(SchedulerSettings, {**flags, new: "4"})


@pytest.mark.parametrize("settings_class", SERVICES)
def test_every_setting_has_a_description(settings_class: type[Settings]) -> None:
    assert all(field.description for field in settings_class.model_fields.values())


@pytest.mark.parametrize("settings_class", SERVICES)
def test_every_number_that_is_no_count_names_its_unit(settings_class: type[Settings]) -> None:
    for name, field in settings_class.model_fields.items():
        if float in (field.annotation, *get_args(field.annotation)):
            text = f"{name.replace('_', ' ')} {field.description}"
            assert re.search(r"\b(seconds|ms|us|GiB|bytes a second|share|weight)\b", text), name


def test_a_setting_of_several_commands_is_declared_once() -> None:
    owners: dict[str, set[type]] = {}
    for settings_class in SERVICES:
        for one in settings_class.__mro__:
            for name in inspect.get_annotations(one).keys() & settings_class.model_fields.keys():
                owners.setdefault(name, set()).add(one)
    several = {name for name, found in owners.items() if len(found) > 1}
    assert several == {"port", "scheduler"}  # each service has a port and peers of its own


def parse_flags(arguments: list[str]) -> dict[str, object]:
    """Reads back what to_flags has written."""
    flags: dict[str, object] = {}
    if "--" in arguments:
        flags["model"] = arguments.pop()
        arguments.remove("--")
    for argument in arguments:
        name, has_value, value = argument.removeprefix("--").partition("=")
        is_off = not has_value and name.startswith("no-")
        flags[name.removeprefix("no-" * is_off).replace("-", "_")] = (
            value if has_value else not is_off
        )
    return flags


def test_flags_carry_settings_to_another_process() -> None:
    given = {"model": "-m", "dtype": "float32", "max_model_len": 99, "reflection": False}
    settings = load(ServeSettings, given)
    worker = load(WorkerSettings, parse_flags(to_flags(settings, WorkerSettings, port=7)))
    router = load(RouterSettings, parse_flags(to_flags(settings, RouterSettings)))
    assert (worker.model, worker.dtype, worker.max_model_len, worker.port) == (
        "-m",
        "float32",
        99,
        7,
    )
    assert router.reflection is False


def test_settings_are_frozen_and_have_values_in_other_units() -> None:
    worker = load(WorkerSettings, {"model": "m", "kv_cache_memory": 0.5, "swap_space": 0})
    assert (worker.kv_cache_bytes, worker.swap_space_bytes) == (1 << 29, 0)
    assert load(RouterSettings, {"scheduler": "a:1"}).scheduler_addresses == ("a:1",)
    router = load(RouterSettings, {"scheduler": "a:1, b:2"})
    assert router.scheduler_addresses == ("a:1", "b:2")
    with pytest.raises(ValidationError, match="frozen"):
        router.scheduler = "c:1"


@pytest.mark.parametrize(
    ("flags", "served"),
    [
        ({}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "reflection": True}, True),
        ({"reflection": False}, False),
    ],
)
def test_reflection_is_for_this_machine_unless_asked_for(
    flags: dict[str, object], served: bool
) -> None:
    assert load(RouterSettings, flags).serves_reflection is served


def test_an_overriding_generation_config_is_json_or_a_mapping_of_the_file(tmp_path: Path) -> None:
    text = '{"temperature": 0.5, "max_new_tokens": 9}'
    flags = {"model": "m", "override_generation_config": text}
    content = "model: m\noverride-generation-config: {temperature: 0.5, max_new_tokens: 9}\n"
    config = {"config": write_config(tmp_path, content)}
    for settings in (load(WorkerSettings, flags), load(WorkerSettings, config)):
        assert settings.generation_override == {"temperature": 0.5, "max_new_tokens": 9}
    assert f"--override-generation-config={text}" in to_flags(
        load(ServeSettings, flags), WorkerSettings
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "it is no JSON"),
        ("[1]", "it must be a JSON object"),
        ('{"top_q": 1}', "it has 'top_q'; it takes temperature"),
        ('{"temperature": 3}', r"temperature is 3; it must be in \[0, 2\]"),
    ],
)
def test_an_overriding_generation_config_is_refused_before_a_model_is_loaded(
    text: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=rf"--override-generation-config is .*{expected}"):
        load(ServeSettings, {"model": "m", "override_generation_config": text})


def test_run_serves_http_where_its_port_is_given() -> None:
    told: list[str] = []
    settings = load(RunSettings, {"model": "m", "port": 8123}, tell=told.append)
    assert (settings.http, settings.http_port, told) == (True, 8123, [])
    assert not load(RunSettings, {"model": "m"}).http
