"""Names of flags and variables are whole, help is found by a word, and no value is repeated."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox import cli
from signalbox.settings.environment import own_variables
from signalbox.settings.loading import check_environment, load
from signalbox.settings.sources import SettingsError
from signalbox_router.config import RouterSettings

SECRET = "sk-do-not-show"


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with pytest.raises(SystemExit):
        cli.parse(arguments)
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--api-ky", SECRET], "no flag --api-ky; did you mean --api-key"),
        (["serve", f"--api-ky={SECRET}"], "no flag --api-ky; did you mean --api-key"),
        (["serve", "--simulate", "--max-num-seq", SECRET], "did you mean --max-num-seqs?"),
        (["worker", "m", SECRET], "more arguments than the command takes"),
        (["chat", "-ngl", SECRET], "no flag -ngl; it is the server's"),
        (["worker", "-fa", SECRET], "no flag -fa; no effect: "),
        (["chat", "-hf", SECRET], "no flag -hf; it is the server's"),
        (["chat", "--port", SECRET], "no flag --port; --router HOST:PORT is"),
        (["models", "--base-url", SECRET], "no flag --base-url; --router HOST:PORT is"),
        (["top", f"--url={SECRET}"], "no flag --url; --scheduler HOST:PORT is"),
        (["chat", "-f", SECRET], "no flag -f; pipe a file"),
        (["bench", "--plot", SECRET], "no flag --plot; --json prints the figures"),
        (["show", SECRET], "there is no command show; `signalbox models`"),
        (["serve", "m", "--role", SECRET], "no flag --role; it is a flag of signalbox worker (see"),
        (["worker", "--workers=2"], "a flag of signalbox serve, demo, run, run-batch, ... (see"),
        (["serve", "--scheduler", SECRET], "a flag of signalbox router, worker, drain, cache, ..."),
        (["cache"], "arguments are required: list|clear (see"),
        (["cache", "list", "--json", "kv", SECRET], "more arguments than the command takes"),
        (["serve", "--tensor-parallel", "2"], "did you mean --tensor-parallel-size?"),
        (["router", "--drain", "1"], "no flag --drain"),
        (["keys", "create", "a", "--token", SECRET], "no flag --token"),
        (["serve", f"--debug={SECRET}"], "--debug/--no-debug: it takes no value (see"),
        (["serve", f"--no-http={SECRET}"], "--http/--no-http: it takes no value (see"),
        (["top", f"--once={SECRET}"], "--once: it takes no value (see"),
        (["generate", "-n", SECRET, "a"], "-n: it takes a whole number (see"),
        (["profile", "--seconds", SECRET], "--seconds: it takes a number (see"),
        (["bench", SECRET], "the command takes flags, and no argument without one (see"),
        (["config", "check", "a.yaml", SECRET], "COMMAND: it takes one of serve, "),
        ([SECRET, "m"], "there is no such command (see"),
        (["serv", "m"], "there is no command serv; did you mean serve?"),
    ],
)
def test_what_the_command_line_cannot_be_is_refused_without_its_value(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, errors = said(arguments, capsys)
    assert expected in errors
    assert SECRET not in errors
    assert len(errors.splitlines()) == 1


def test_help_is_in_groups_and_vllms_flags_are_in_none(capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = said(["serve", "--help"], capsys)
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles[2:4] == ["addresses", "model and device"]
    assert titles[-1] == "general"
    assert len(set(titles)) == len(titles)
    assert "--enable-chunked-prefill" not in text


def test_help_all_has_every_flag_and_listgroup_the_titles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, _ = said(["serve", "--help=all"], capsys)
    assert "--enable-chunked-prefill" in text
    assert "--max-num-seqs" in text
    titles, _ = said(["serve", "--help=listgroup"], capsys)
    assert {"addresses", "model and device", "general"} <= set(titles.splitlines())


def test_no_command_at_all_is_answered_with_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, errors = said([], capsys)
    assert "signalbox serve models/" in errors


@pytest.mark.parametrize(
    ("word", "there", "not_there"),
    [
        ("tensor", "--tensor-parallel-size", "--max-num-seqs"),
        ("max_num_seqs", "--max-num-seqs", "--host"),
        ("vllm", "--enable-chunked-prefill", "--max-num-seqs"),
        ("protection", "--tls-cert", "--http-port"),
        ("Prometheus", "--metrics-port", "--http-port"),
    ],
)
def test_help_on_a_word_has_the_flags_that_are_about_it(
    word: str, there: str, not_there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = said(["serve", f"--help={word}"], capsys)
    assert there in text
    assert not_there not in text


def test_help_on_a_word_without_a_command_names_the_flags_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, _ = said(["--help=chat_template"], capsys)
    lines = {line.strip() for line in text.splitlines()}
    assert "--chat-template: serve, demo, router, run, run-batch" in lines
    text, _ = said(["--help=answers"], capsys)
    assert "\n  -n: run, generate, chat\n" in text  # which has no long form
    for word in ("zork", "fair-input-weight", "nkvo"):  # is gone; is another spelling
        for nowhere in ([f"--help={word}"], ["serve", f"--help={word}"]):
            _, errors = said(nowhere, capsys)
            assert f"no flag is about '{word}'" in errors


def test_a_variable_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNALBOX_MAX_NUM_SEQ", SECRET)
    with pytest.raises(SettingsError, match="SIGNALBOX_MAX_NUM_SEQ; did you mean") as caught:
        load(RouterSettings, {})
    assert "SIGNALBOX_MAX_NUM_SEQS?" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_variable_is_like_another_by_what_follows_the_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIGNALBOX_FOO", "1")
    with pytest.raises(SettingsError, match=r"nothing reads SIGNALBOX_FOO$"):
        load(RouterSettings, {})


def test_a_command_that_asks_refuses_such_a_variable_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIGNALBOX_RUTER", "127.0.0.1:9")
    assert cli.main(["models"]) == 1
    assert "SIGNALBOX_RUTER; did you mean SIGNALBOX_ROUTER?" in capsys.readouterr().err


def test_variables_of_other_commands_and_of_kubernetes_are_let_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SIGNALBOX_ROUTER", "a:1")
    monkeypatch.setenv("SIGNALBOX_KV_CACHE_MEMORY", "1")
    links = {
        "SIGNALBOX_API_SERVICE_HOST": "10.0.0.1",
        "SIGNALBOX_API_SERVICE_PORT_GRPC": "50051",
        "SIGNALBOX_API_PORT": "tcp://10.0.0.1:50051",
        "SIGNALBOX_API_PORT_50051_TCP_ADDR": "10.0.0.1",
    }
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    check_environment()
    assert own_variables([*links.items(), ("SIGNALBOX_HOST", "a"), ("HOST", "b")]) == {"HOST": "a"}


def test_a_key_of_a_file_that_is_none_is_refused_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(f"max-live-request: {SECRET}\n")
    with pytest.raises(SettingsError) as caught:
        load(RouterSettings, {"config": str(path)})
    assert f"--config {path}" in str(caught.value)
    assert "did you mean max_live_requests?" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_health_probe_loads_no_settings() -> None:
    script = (
        "import sys; from signalbox import cli;"
        " status = cli.main(['health', '--address=127.0.0.1:1']);"
        " print(status, *({'pydantic', 'pydantic_settings', 'yaml'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize("command", ["serve", "worker", "scheduler", "router"])
def test_help_says_once_how_flags_are_variables(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = said([command, "--help"], capsys)
    assert out.count("SIGNALBOX_LOG_LEVEL") == 1
    assert "SIGNALBOX_HOST" not in out


def test_help_about_kv_has_the_swap_space_that_blocks_pass_through(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = said(["serve", "--help=kv"], capsys)
    assert "--kv-disk PATH" in out
    assert "--swap-space X" in out


def test_help_ends_quietly_when_its_reader_has_left() -> None:
    """As in `signalbox serve --help=vllm | head`."""
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes) as left:
        done = subprocess.run(
            [sys.executable, "-m", "signalbox", "serve", "--help=vllm"],
            stdout=left,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "")
