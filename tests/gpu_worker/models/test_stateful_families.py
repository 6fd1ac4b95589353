"""Families of transformers whose layers keep states: those that no program computes are refused by
name, by their configuration alone."""

from pathlib import Path

import pytest
import transformers
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.models import architectures
from signalbox_worker.runner.loading.model_source import source_at
from signalbox_worker.runner.loading.opened_model import check_configuration

_MODELS = Path(transformers.__file__).parent / "models"
_MARKS = (
    *("_is_stateful = True", "update_conv_state", "update_recurrent_state"),
    "linear_attention",
)
"""Parts of the code of a family that has states: a flag of its models, calls of its cache, and a
kind of layers."""


def stateful() -> list[str]:
    """Returns the causal architectures that have states by their code."""
    found = set()
    for kind, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        folder = _MODELS / model_type_to_module_name(kind).replace(".", "/")
        code = [file.read_text(encoding="utf-8") for file in folder.glob("modeling_*.py")]
        if any(mark in one for one in code for mark in _MARKS):
            found.add(architecture)
    return sorted(found)


def test_families_with_states_are_found() -> None:
    assert {"JambaForCausalLM", "RwkvForCausalLM", "RecurrentGemmaForCausalLM"} <= {*stateful()}
    assert {"Lfm2ForCausalLM", "NemotronHForCausalLM"} <= {*stateful()} & architectures()
    assert "LlamaForCausalLM" not in stateful()


@pytest.mark.parametrize("architecture", sorted({*stateful()} - architectures()))
def test_states_that_no_program_computes_are_refused_by_name(
    architecture: str, tmp_path: Path
) -> None:
    config = getattr(transformers, architecture).config_class(architectures=[architecture])
    config.save_pretrained(tmp_path)
    source = source_at(tmp_path, name="x", is_dummy=True)
    with pytest.raises(ModelError, match=architecture) as error:
        check_configuration(ModelConfig(model=str(tmp_path)), source)
    assert "KV cache cannot hold" in str(error.value)
