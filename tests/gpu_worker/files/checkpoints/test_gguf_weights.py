"""What a GGUF file holds: its fields, and weights of every type, as the gguf package reads them."""

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from struct import pack

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from signalbox_kernels.floats import BFLOAT16, AnyArray, to_float32
from signalbox_kernels.storage import BOOKS, Storage, StoredMatrix
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.blocks import held_as, held_bytes
from signalbox_worker.files.checkpoints.gguf.factors import with_factors
from signalbox_worker.files.checkpoints.gguf.reader import read_gguf
from signalbox_worker.files.checkpoints.gguf.weights import read_blocks, read_values
from tests.gpu_worker.runner.loading.gguf_files import (
    blocks_of,
    make_gguf,
    open_path,
    write_tensors,
    writing,
)
from tests.gpu_worker.tiny_models import make_model
from tests.kernels.native.matrices import values_of

PLAIN = ["F32", "F16", "BF16"]
DECODED = [name for name in gguf.quants.__dict__ if name in GGMLQuantizationType.__members__]
"""Types in blocks that the package decodes, and BF16."""
QUANTS = [name for name in DECODED if name not in PLAIN]


def make_stored(kind: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random weights of a type, all finite."""
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return blocks_of(values, GGMLQuantizationType[kind])


def load(path: Path, name: str = "w") -> AnyArray:
    return read_values(read_gguf(path).tensors[name])


@pytest.mark.parametrize("kind", [*PLAIN, *QUANTS])
def test_weights_of_each_type_are_those_of_the_package(kind: str, tmp_path: Path) -> None:
    shape = (700, 512)  # more than one slice, and not a multiple of it
    stored = make_stored(kind, shape)
    tensor = read_gguf(write_tensors(tmp_path / "x.gguf", {"w": (kind, stored)})).tensors["w"]
    expected = dequantize(stored, tensor.type).reshape(shape)
    assert np.isfinite(expected).all()
    np.testing.assert_array_equal(to_float32(read_values(tensor)), expected)
    held = held_as(tensor.type)
    assert (held is None) == (kind in PLAIN)
    if held is not None:
        matrix = StoredMatrix(held, shape, lambda: read_blocks(tensor, 0, len(stored)))
        np.testing.assert_array_equal(values_of(matrix), expected)
        num_blocks = expected.size // held.block_size
        in_panels = matrix.blocks.nbytes - (16 * num_blocks if held in BOOKS else 0)
        assert held_bytes(tensor.num_bytes, tensor.type) == in_panels


@pytest.mark.parametrize("shape", [(6, 128), (3, 4, 64)])
def test_factors_beside_matrices_in_nvfp4_are_of_their_values(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    """Of a matrix, or of each expert's; what families or other types have by the name stays."""
    factors = np.array([1 / 3, 4.0, 0.3][: 3 if len(shape) > 2 else 1], dtype=np.float32)
    weight = make_stored("NVFP4", shape)
    beside = ("F32", factors.view(np.uint8))
    others = {
        "blk.0.b.weight": ("F32", np.zeros(4, np.uint8)),
        "blk.0.g.weight": ("NVFP4", weight),
        **dict.fromkeys(("blk.0.b.scale", "blk.0.g.scale", "n.scale"), beside),
    }
    scales = dict.fromkeys(("blk.0.a.scale", "blk.0.a.input_scale"), beside)
    written = others | scales | {"blk.0.a.weight": ("NVFP4", weight)}
    stored = read_gguf(write_tensors(tmp_path / "x.gguf", written)).tensors
    tensors = {tensor.name: tensor for tensor in with_factors(stored, ["g.scale"])}
    assert tensors.keys() == {*others, "blk.0.a.weight"}
    assert not tensors["blk.0.g.weight"].factors
    plain = dequantize(weight, GGMLQuantizationType.NVFP4).reshape(len(factors), -1)
    expected = (plain * factors[:, None]).reshape(-1, shape[-1])
    tensor = tensors["blk.0.a.weight"]
    np.testing.assert_array_equal(read_values(tensor).reshape(expected.shape), expected)
    for first in range(0, len(expected), 2):
        read = partial(read_blocks, tensor, first, first + 2)
        matrix = StoredMatrix(Storage.NVFP4, (2, shape[-1]), read)
        np.testing.assert_allclose(values_of(matrix), expected[first : first + 2], rtol=2e-7)
    if len(shape) > 2:
        expert = read_values(tensor.of_expert(1))
        np.testing.assert_array_equal(expert, expected.reshape(shape)[1])


def test_weights_of_16_bits_are_not_widened(tmp_path: Path) -> None:
    tensors = {kind: (kind, make_stored(kind, (8, 32))) for kind in PLAIN}
    path = write_tensors(tmp_path / "x.gguf", tensors)
    dtypes = [load(path, kind).dtype for kind in PLAIN]
    assert dtypes == [np.float32, np.float16, BFLOAT16]


def test_stacks_of_matrices_keep_their_shape(tmp_path: Path) -> None:
    stored = make_stored("Q8_0", (3, 4, 64))
    values = load(write_tensors(tmp_path / "x.gguf", {"w": ("Q8_0", stored)}))
    assert values.shape == (3, 4, 64)


def test_weights_of_a_type_that_the_package_lacks_are_refused(tmp_path: Path) -> None:
    stored = np.zeros((2, 64), dtype=np.uint8)
    path = write_tensors(tmp_path / "x.gguf", {"w": ("I8", stored)})
    with pytest.raises(ModelError, match="weights of type I8 are not"):
        load(path)


def test_loaded_weights_do_not_write_to_the_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "x.gguf", {"w": ("F32", make_stored("F32", (4, 8)))})
    before = path.read_bytes()
    load(path).fill(0)
    assert path.read_bytes() == before


def test_fields_are_those_of_the_package(tmp_path: Path) -> None:
    reference = make_model(tmp_path / "hf", "qwen3", head_dim=8)
    path = make_gguf(tmp_path / "x.gguf", reference, "qwen3")
    theirs = gguf.GGUFReader(path)
    ours = read_gguf(path)
    for name, value in ours.fields.items():
        field = theirs.get_field(name)
        assert field is not None
        assert field.contents() == value
    assert [(t.name, tuple(t.shape.tolist()[::-1])) for t in theirs.tensors] == [
        (t.name, t.shape) for t in ours.tensors.values()
    ]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda head: head.replace(b"w2", b"w1"), "two of its entries have one name"),
        (lambda head: head.replace(b"general.first", b"general.other"), "entries have one name"),
        (lambda head: head.replace(pack("<IQ", 0, 32), pack("<IQ", 0, 8)), "at no multiple of 32"),
        (lambda head: head.replace(pack("<II", 4, 64), pack("<II", 4, 24)), "no power of two"),
    ],
)
def test_file_that_llama_cpp_refuses_is_refused(
    spoil: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    with writing(path, "llama") as writer:
        for name in ("first", "other"):
            writer.add_uint32(f"general.{name}", 1)
        if "power" in message:
            writer.add_custom_alignment(64)
        for name in ("w1", "w2"):
            writer.add_tensor(name, np.ones(8, dtype=np.float32))
    read_gguf(path)
    content = path.read_bytes()
    assert spoil(content) != content
    path.write_bytes(spoil(content))
    with pytest.raises(ModelError, match=message):
        read_gguf(path)


def test_big_endian_file_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"x.gguf is big-endian, .* take a little-endian") as error:
        read_gguf(path)
    assert "fetch" not in str(error.value)


def counting(num_entries: int) -> bytes:
    """The head of a file that counts as many tensors and fields."""
    return b"GGUF" + struct.pack("<IQQ", 3, num_entries, num_entries) + bytes(64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no readable GGUF"),
        (b"not a gguf file, but long enough to look at", "no readable GGUF"),
        (b"GGUF", "no readable GGUF"),
        *((counting(3)[:length], r"\(it is cut off\)") for length in (6, 12, 20, 24, 30)),
        (counting(1 << 60), "it is cut off"),
        *((share, "no readable GGUF file") for share in (0.001, 0.02, 0.3, 0.9, 0.9999)),
    ],
)
def test_file_that_is_no_gguf_or_cut_off_is_refused(
    content: bytes | float, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    if isinstance(content, float):  # this share of a sound file
        make_gguf(path, make_model(tmp_path / "hf", "qwen3"), "qwen3")
        content = path.read_bytes()[: int(path.stat().st_size * content)]
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        open_path(path)
