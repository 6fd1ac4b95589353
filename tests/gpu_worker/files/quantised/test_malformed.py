"""A checkpoint whose parts do not fit is refused with a ModelError, whatever is wrong with them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from signalbox_kernels.structs import Element
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.activations import SCALE, ZERO_POINT, ActivationScheme
from signalbox_worker.files.quantised.codes import NUMPY
from signalbox_worker.files.quantised.scaled import ROW, scaled_form
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from tests.gpu_worker.files.quantised.test_library_checkpoints import CHECKPOINTS, NAMES

WEIGHTS = "model.safetensors"
UP = "model.layers.0.mlp.up_proj"
NOT_READ = ("g_idx", "weight_format", "input_global_scale")
"""Parts that may be missing; all but the first are not read."""


def config_of(name: str) -> Any:
    return json.loads((CHECKPOINTS / name / "config.json").read_text())


def parts_of(name: str) -> list[str]:
    """Returns the ends of the names of a matrix's tensors."""
    names = load_file(CHECKPOINTS / name / WEIGHTS)
    return [key.removeprefix(f"{UP}.") for key in names if key.startswith(f"{UP}.")]


def save(folder: Path, name: str, tensors: dict[str, Tensor], config: Any = None) -> Path:
    save_file({key: one.contiguous() for key, one in tensors.items()}, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config or config_of(name)))
    return folder


def read_matrices(folder: Path) -> None:
    """As a worker does: the sizes first."""
    source = DirectorySource(folder, name="broken")
    assert source.sizes is not None
    for tensor in source.stored().values():
        tensor.read()


PARTS = [(name, end) for name in NAMES for end in parts_of(name)]
BREAKS: dict[str, Callable[[Tensor], Tensor]] = {
    "empty": lambda part: part.reshape(-1)[:0],
    "no rows": lambda part: part[:0],
    "longer": lambda part: torch.cat([part, part]),
    "of floats of 64 bits": lambda part: part.to(torch.float64),
    "of 16 bits": lambda part: part.to(torch.int16),
}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize(("name", "end"), PARTS)
def test_a_part_of_another_shape_or_type_is_refused(
    name: str, end: str, how: str, tmp_path: Path
) -> None:
    tensors = load_file(CHECKPOINTS / name / WEIGHTS)
    part = tensors[f"{UP}.{end}"]
    is_shape = not how.startswith("of")
    if is_shape and (not part.dim() or end in NOT_READ[1:]):
        pytest.skip("has no shape that is read")
    if is_shape and (name, end, how) == ("ct_fp8_static", "weight", "longer"):
        pytest.skip("goes with the scale of a whole matrix")
    tensors[f"{UP}.{end}"] = BREAKS[how](part)
    with pytest.raises(ModelError, match=rf"{UP} has .*{end}.*(no matrix|one number)|codes of its"):
        read_matrices(save(tmp_path, name, tensors))


@pytest.mark.parametrize(("name", "end"), PARTS)
def test_a_part_that_is_missing_is_missed(name: str, end: str, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINTS / name / WEIGHTS)
    del tensors[f"{UP}.{end}"]
    if end in NOT_READ and not config_of(name)["quantization_config"].get("desc_act"):
        read_matrices(save(tmp_path, name, tensors))
        return
    with pytest.raises(ModelError, match=f"{UP} (has .*, which is no matrix|lacks|has no {end})"):
        read_matrices(save(tmp_path, name, tensors))


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_a_static_scale_that_rounds_nothing_is_refused(value: float, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINTS / "ct_fp8_static" / WEIGHTS)
    tensors[f"{UP}.input_scale"].fill_(value)
    with pytest.raises(ModelError, match=f"{UP} has an input_scale of {value:g}; fetch"):
        read_matrices(save(tmp_path, "ct_fp8_static", tensors))


@pytest.mark.parametrize("value", [1.5, 128.0, float("nan")])
def test_a_zero_point_of_weights_that_is_no_code_is_refused(value: float) -> None:
    form = scaled_form("compressed-tensors", ROW)
    parts = {
        "weight": np.ones((2, 32), np.int8),
        "weight_scale": np.ones((2, 1), np.float32),
        "weight_zero_point": np.full((2, 1), value, np.float32),
    }
    assert form.unpack is not None
    with pytest.raises(ModelError, match="weight_zero_point that is no code of 8 bits"):
        form.unpack(parts, NUMPY)


def test_a_zero_point_of_activations_that_is_no_code_is_refused() -> None:
    scheme = ActivationScheme(code=Element.INT8, is_symmetric=False, is_static=True)
    parts = {SCALE: np.float32([1]), ZERO_POINT: np.float32([1.5])}
    with pytest.raises(ValueError, match=r"input_zero_point of 1\.5"):
        scheme.rounding(parts.get)


@pytest.mark.parametrize("name", ["gptq_v1", "ct_w4a16"])
def test_a_weight_beside_its_codes_is_refused(name: str, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINTS / name / WEIGHTS)
    tensors[f"{UP}.weight"] = torch.zeros(96, 64)
    with pytest.raises(ModelError, match=f"{UP} has both a weight and one in"):
        read_matrices(save(tmp_path, name, tensors))


@pytest.mark.parametrize("group", [-1, 2, 1 << 30])
def test_a_group_that_is_not_there_is_refused(group: int, tmp_path: Path) -> None:
    tensors = load_file(CHECKPOINTS / "gptq_v1" / WEIGHTS)
    tensors[f"{UP}.g_idx"][7] = group
    with pytest.raises(ModelError, match="a column is in a group that is not there"):
        read_matrices(save(tmp_path, "gptq_v1", tensors))


STATE = f"{UP}.weight.quant_state.bitsandbytes__nf4"
STATES: list[Any] = [
    {"shape": [96, 64]},
    {"shape": [96, -64], "blocksize": 64},
    {"shape": [1 << 40, 64], "blocksize": 64},
    {"shape": [96], "blocksize": 64},
    {"shape": 96, "blocksize": 64},
    {"shape": [96, 64], "blocksize": "64"},
    {"shape": [96, 64], "blocksize": 0},
    {"shape": [96, 64], "blocksize": 1 << 40},
    {"shape": [96, 64], "blocksize": 64, "nested_blocksize": 0},
    {"shape": [96, 64], "blocksize": 64, "nested_blocksize": 256, "nested_offset": "x"},
    [96, 64],
    None,
    b"[" * 10_000,
]


@pytest.mark.parametrize("state", STATES)
def test_a_state_of_bitsandbytes_that_describes_nothing_is_refused(
    state: Any, tmp_path: Path
) -> None:
    written = state if isinstance(state, bytes) else json.dumps(state).encode()
    tensors = load_file(CHECKPOINTS / "bnb_nf4" / WEIGHTS)
    tensors[STATE] = torch.tensor([*written], dtype=torch.uint8)
    with pytest.raises(ModelError, match=f"{UP} has .*, which is no matrix in bitsandbytes"):
        read_matrices(save(tmp_path, "bnb_nf4", tensors))


@pytest.mark.parametrize("name", ["bnb_nf4", "bnb_nf4_nested"])
def test_magnitudes_of_bitsandbytes_of_the_other_kind_are_refused(
    name: str, tmp_path: Path
) -> None:
    tensors = load_file(CHECKPOINTS / name / WEIGHTS)
    found = tensors[f"{UP}.weight.absmax"]
    other = torch.float32 if found.dtype == torch.uint8 else torch.uint8
    tensors[f"{UP}.weight.absmax"] = found.to(other)
    with pytest.raises(ModelError, match=r"absmax that is no (codes|floats)"):
        read_matrices(save(tmp_path, name, tensors))


VALUES: list[Any] = [None, True, -1, 0, 3, 4.0, 1e9, 10**30, "x", "re:(", "re:a{99999999999}"]
VALUES += [[], {}, [1], ["re:("], {"a": 1}, {"re:(": {}}, {"+:.*": {"bits": "4"}}]


def changed(described: Any) -> Iterator[Any]:
    """Yields copies of a configuration with another value in one place."""
    for key in [*described] if isinstance(described, dict) else range(len(described)):
        for value in VALUES:
            copy = json.loads(json.dumps(described))
            copy[key] = value
            yield copy
        if isinstance(described[key], dict | list):
            for inner in changed(described[key]):
                copy = json.loads(json.dumps(described))
                copy[key] = inner
                yield copy


@pytest.mark.parametrize(
    "name", ["awq", "bnb_nf4", "ct_fp8_block", "ct_w4a16", "ct_w8a8", "fp8_block"]
)
def test_a_configuration_of_other_values_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """Never another error than ModelError."""
    tensors = load_file(CHECKPOINTS / name / WEIGHTS)
    config = config_of(name)
    save(tmp_path, name, {key: one for key, one in tensors.items() if key.startswith(UP)})
    num_refused = 0
    for described in [*VALUES[1:], *changed(config["quantization_config"])]:
        config["quantization_config"] = described
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            read_matrices(tmp_path)
        except ModelError:
            num_refused += 1
    assert num_refused > len(VALUES)
