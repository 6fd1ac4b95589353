"""The models of a command line and of a file, each with its settings."""

from pathlib import Path
from typing import Any

import pytest

from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeCommandSettings
from signalbox.settings.sources import SettingsError
from signalbox.stack.models.model_list import NamedModel, named_models


def listed(**flags: Any) -> list[NamedModel]:
    return named_models(load(ServeCommandSettings, flags))


def file_of(tmp_path: Path, text: str) -> str:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    return str(path)


def test_models_have_the_names_of_their_files_or_those_given() -> None:
    found = listed(model="org/first", more_models=["second=org/other:Q8_0", "x/third.gguf"])
    assert [(one.name, one.settings.model) for one in found] == [
        ("first", "org/first"),
        ("second", "org/other:Q8_0"),
        ("third.gguf", "x/third.gguf"),
    ]
    assert found[1].settings.served_model_name == ("second",)


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("size=small.gguf").touch()
    (one, _) = listed(model="one=size=small.gguf", more_models=["org/b"])
    assert (one.name, one.settings.model) == ("one", "size=small.gguf")
    with pytest.raises(SettingsError, match="write NAME=MODEL"):
        listed(model="size=small.gguf", more_models=["org/b"])


def test_a_file_has_settings_that_beat_the_flags(tmp_path: Path) -> None:
    models = file_of(
        tmp_path,
        "short-name: org/small\nlarge:\n  model: org/large\n  max-model-len: 8k\n  workers: 2\n",
    )
    small, large = listed(models=models, max_model_len=512, max_num_seqs=8)
    assert (small.name, small.settings.max_model_len) == ("short-name", 512)
    assert (large.settings.max_model_len, large.settings.workers) == (8000, 2)
    assert large.settings.max_num_seqs == 8


def test_simulated_models_take_no_flags_of_models(tmp_path: Path) -> None:
    models = file_of(tmp_path, "fake:\n  simulate: true\n  simulated_step_ms: 5\n")
    real, fake = listed(model="org/real", models=models, dtype="float32")
    assert real.settings.dtype == "float32"
    assert fake.settings.simulate
    assert fake.settings.simulated_step_ms == 5


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"model": "org/a", "more_models": ["other/a"]}, "two models are called a"),
        ({"model": "org/a", "keep_warm": ["b"]}, "--keep-warm names b; the models are a"),
        ({"model": "org/a", "more_models": ["org/b"], "metrics_port": 1}, "/metrics of the HTTP"),
        ({"model": "org/a", "more_models": ["org/b"], "served_model_name": "c"}, "NAME=MODEL"),
        ({"models_loaded": "all"}, "give a MODEL"),
        ({"model": "org/a", "models_memory": 0}, "--models-memory is 0"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        listed(**flags)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: org/a\nb: 3\n", "b: write NAME: MODEL"),
        ("a:\n  dtype: float32\n", "a: write NAME: MODEL, or NAME with settings and its model"),
        ("a:\n  model: org/a\n  max_model_ln: 3\n", "no setting is called max_model_ln; did you"),
        ("a:\n  model: org/a\n  grpc_port: 3\n", "no setting is called grpc_port"),
        ("a:\n  model: org/a\n  served_model_name: b\n", "served_model_name"),
        ("a:\n  model: org/a\n  max_model_len: x\n", "a: --max-model-len is 'x'"),
        ("a b: org/a\n", "'a b': names have no spaces"),
        ("", "has no models"),
        ("a: org/a\nb: org/b\na: org/c\n", "line 3: the key of line 1 comes again"),
        ("- a\n", "expected `NAME: value` lines"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, text: str, expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected):
        listed(models=file_of(tmp_path, text))


def test_one_model_and_no_flag_of_several_is_served_as_ever() -> None:
    assert not load(ServeCommandSettings, {"model": "org/a"}).serves_several
    assert load(ServeCommandSettings, {"model": "org/a", "idle_timeout": 5}).serves_several
