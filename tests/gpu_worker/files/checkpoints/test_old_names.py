"""Checkpoints of code beside the weights have the tensors that transformers makes of theirs."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from signalbox_worker.files.checkpoints import old_names
from signalbox_worker.runner.loading.model_source import source_at
from tests.gpu_worker.models.pooling.encoder_models import save_model


@pytest.mark.parametrize("family", sorted(old_names._OLD.keys() - {"DistilBert", "MPNet"}))
def test_names_are_those_of_transformers(family: str) -> None:
    config_class = getattr(transformers, f"{family}Config")
    theirs = get_checkpoint_conversion_mapping(config_class.model_type)
    renamings = {
        one.source_patterns[0]: one.target_patterns[0]
        for one in theirs
        if len(one.target_patterns) == 1
    }
    fused = {
        one.source_patterns[0]: tuple(one.target_patterns)
        for one in theirs
        if len(one.target_patterns) > 1
    }
    assert renamings == old_names._OLD[family]
    assert fused == old_names._FUSED


def test_either_names_give_the_same_tensors(tmp_path: Path) -> None:
    model, file = save_model(tmp_path, "nomic-bert"), tmp_path / "model.safetensors"
    expected = dict(model.state_dict())
    for held in (expected, _by_old_names(expected)):
        save_file(held, file)
        found = source_at(tmp_path, name="x", is_dummy=False).stored()
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert tensor.shape == expected[name].shape
            torch.testing.assert_close(torch.from_numpy(tensor.read()), expected[name])


def _by_old_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Renames, and joins Q, K and V, which follow one another."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        for old, own in old_names._OLD["NomicBert"].items():
            name = name.replace(own, old)
        fused = re.sub(r"self_attn\.[qkv]_proj", "attn.Wqkv", name)
        found[fused] = torch.cat([found[fused], tensor]) if fused in found else tensor
    return found
