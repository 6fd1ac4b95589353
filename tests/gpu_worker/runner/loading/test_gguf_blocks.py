"""Models in blocks of every type: native programs compute the values that they stand for."""

import itertools
import logging
import re
from pathlib import Path

import gguf
import pytest

from signalbox_worker.files.checkpoints.gguf.blocks import held_as
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.loading.gguf_files import expand, make_gguf
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

TYPES = {kind.name: held for kind in gguf.GGMLQuantizationType if (held := held_as(kind))}


@pytest.mark.parametrize("commonest", ["IQ2_XS", "TQ2_0", "IQ4_XS"])
def test_blocks_of_all_types_are_multiplied_as_their_values(
    commonest: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape = heads | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 4}
    reference = make_model(tmp_path / "hf", "llama3", **shape)
    types = itertools.chain(TYPES, itertools.repeat(commonest))
    path = make_gguf(tmp_path / "x.gguf", reference, "llama", kind_of=lambda _: next(types))
    with caplog.at_level(logging.INFO):
        native = make_runner(path)
    as_what = "as it is" if commonest == "IQ4_XS" else f"held as {TYPES[commonest].name}"
    assert re.search(f"weights: {commonest} of the file,? .*{as_what}, ", caplog.text)
    packed = {*re.findall(r"\d of (\w+)", native.executor.program.weights)}
    assert packed >= {held.name for held in TYPES.values()}
    prompts = make_prompts(1, 17, 40)
    values = make_runner(expand(gguf.GGUFReader(path), tmp_path / "values.gguf"))
    expected = Driver(runner=values).generate(prompts, num_tokens=8)
    assert Driver(runner=native, chunk=7).generate(prompts, num_tokens=8) == expected
