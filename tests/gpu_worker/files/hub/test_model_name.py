"""Names of models on the hub, as other servers take them."""

import pytest

from signalbox_worker.config import ModelConfig
from signalbox_worker.files.hub.model_name import parse_hub_name
from signalbox_worker.runner.loading.model_source import find_model, model_name


@pytest.mark.parametrize(
    ("model", "repository", "tag"),
    [
        ("org/name", "org/name", None),
        ("org/name:q4_k_m", "org/name", "q4_k_m"),
        ("hf.co/org/name", "org/name", None),
        ("hf.co/org/name:IQ1_S", "org/name", "IQ1_S"),
        ("https://huggingface.co/org/name", "org/name", None),
        ("org/name:a-Q8_0.gguf", "org/name", "a-Q8_0.gguf"),
        ("org/name:BF16/a-BF16-00001-of-00002.gguf", "org/name", "BF16/a-BF16-00001-of-00002.gguf"),
    ],
)
def test_names_are_those_of_other_servers(model: str, repository: str, tag: str | None) -> None:
    name = parse_hub_name(model)
    assert name is not None
    assert (name.repository, name.tag) == (repository, tag)
    config = ModelConfig(model=model)
    assert find_model(config) is None
    assert model_name(config) == "name"


@pytest.mark.parametrize(
    "model", ["name", "org/name.gguf", "a/b/c", "org/name:", "org/name:a b", "/"]
)
def test_what_is_no_name_on_the_hub_is_refused(model: str) -> None:
    assert parse_hub_name(model) is None
    with pytest.raises(FileNotFoundError, match=r"a hub id \(org/name, org/name:Q4_K_M\)"):
        find_model(ModelConfig(model=model.replace("/", "/no/", 1)))
