"""`signalbox config` shows each setting with its source, and no secret; it checks a file."""

from pathlib import Path

import pytest
import yaml

from signalbox import cli

SECRET = "sk-do-not-show"


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "signalbox.yaml"
    path.write_text(text)
    return str(path)


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["config", "show", *arguments]) == 0
    return capsys.readouterr().out


def test_each_setting_is_shown_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(
        tmp_path, "max_num_seqs: 3\nwatermark: 0.5\nkv_cache_memory: 2\npriority_aging_s: 7\n"
    )
    monkeypatch.setenv("SIGNALBOX_WATERMARK", "0.25")
    monkeypatch.setenv("SIGNALBOX_PRIORITY_AGING_S", "8")
    text = show(
        capsys,
        "serve",
        "--config",
        file,
        "--priority-aging-s",
        "9",
        "--served-model-name",
        "a",
        "b",
    )
    lines = text.splitlines()
    assert "priority_aging_s: 9.0  # flag" in lines
    assert "served_model_name: [a]  # flag" in lines and "model: b  # flag" in lines
    assert "watermark: 0.25  # environment" in lines
    assert "max_num_seqs: 3  # file" in lines and "kv_cache_memory: 2.0  # file" in lines
    assert "# log_level: info  # default" in lines and "# seed: null  # default" in lines
    assert len(lines) == len({line.removeprefix("# ").partition(":")[0] for line in lines})


def test_what_is_shown_is_a_file_for_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["worker", "m.gguf", "--max-model-len", "8k", "--override-generation-config", "{}"]
    given += ["--kv-disk", "folder of blocks"]
    text = show(capsys, *given)
    again = show(capsys, "worker", "--config", write(tmp_path, text))
    assert yaml.safe_load(again) == yaml.safe_load(text)
    assert yaml.safe_load(text)["max_model_len"] == 8000


@pytest.mark.parametrize("command", ["serve", "router", "scheduler", "worker"])
def test_a_command_is_shown_without_a_model(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(capsys, command)
    assert yaml.safe_load(text) is None and "# log_level: info  # default" in text
    assert ("# model: null  # default" in text) is (command in ("serve", "worker"))


def test_secrets_are_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGNALBOX_API_KEY", SECRET)
    exporter = f"otlp-http=https://user:{SECRET}@host/v1?token={SECRET}"
    text = show(capsys, "router", "--trace-exporter", exporter)
    assert "# api_key: (hidden)  # environment" in text
    assert "https://(hidden)@host/v1" in text
    assert SECRET not in text


def test_what_a_command_would_refuse_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "show", "scheduler", "--watermark", "7"]) == 1
    assert "--watermark is '7'" in capsys.readouterr().err


def test_a_file_for_several_commands_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, f"max_num_seqs: 8\ntls_ca: ca.pem\napi_key: {SECRET}\nport: 1\n")
    assert cli.main(["config", "check", file]) == 0
    assert capsys.readouterr().out == f"{file} is right\n"
    assert cli.main(["config", "check", file, "serve"]) == 1
    assert "--tls-ca has no effect on serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("simulate: true\ndtype: float32\n", "--dtype has no effect with --simulate"),
        ("max_num_seqs: 8\nmax_num_batched_tokens: 4\n", "at least max_num_seqs (8)"),
        ("tls_cert: a.pem\n", "tls_cert and tls_key go together"),
        ("grpc_port: 8000\n", "--grpc-port and --http-port are both 8000"),
    ],
)
def test_settings_that_contradict_each_other_are_a_fault_for_each_command(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "check", write(tmp_path, text)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert fault in line


def test_a_file_that_suits_serve_alone_is_right(tmp_path: Path) -> None:
    assert cli.main(["config", "check", write(tmp_path, "workers: 0\n")]) == 1
    file = write(tmp_path, "metrics_port: 50052\n")  # the default port of `signalbox scheduler`
    assert cli.main(["config", "check", file]) == 0
    assert cli.main(["config", "check", file, "scheduler"]) == 1


def test_each_fault_of_a_file_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"max_num_seq: {SECRET}\nwatermark: 2\nmax-num-seqs: 0\napi_key: [{SECRET}, 'a b']\n"
    file = write(tmp_path, text + "headless: true\n")
    assert cli.main(["config", "check", file]) == 1
    said = capsys.readouterr()
    lines = said.out.splitlines()
    for part in (
        "no setting is called max_num_seq; did you mean max_num_seqs?",
        "watermark is 2: input should be less than 1",
        "max_num_seqs is 0: input should be greater than 0",
        "api_key: it must be printable ASCII",
        "headless",
    ):
        assert sum(part in line for line in lines) == 1, (part, lines)
    assert all(line.startswith(f"--config {file}: ") for line in lines)
    assert f"{file} has {len(lines)} faults" in said.err
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize(
    "text", [f'api_key: "{SECRET}\n', f"api_key: *{SECRET}\n", f"- {SECRET}\n"]
)
def test_a_file_that_is_no_yaml_is_refused_without_its_text(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["config", "check", write(tmp_path, text)]) == 1
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert "signalbox.yaml" in said.err
