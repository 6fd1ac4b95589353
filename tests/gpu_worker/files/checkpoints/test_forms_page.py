"""The tables of docs/reference/weights.md against what a worker chooses, row by row."""

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import torch

from signalbox_kernels.native import ISA_VARIABLE, Isa
from signalbox_worker.config import CacheConfig, ModelConfig, ModelError
from signalbox_worker.device.device_choice import dtype_for_half
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.native.executor import NativeExecutor
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import WEIGHTS, make_prompts, make_runner, remove_files
from tests.gpu_worker.quantised_models import in_awq, save_quantised
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.native_kernels import available_isas, skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "weights.md"
HEAD = "| model | `--dtype` | `--quantization` |"
KINDS = {
    "GGUF in blocks": ["blocks"],
    "AWQ": ["integers"],
    "floats": ["floats"],
    "GGUF, floats": ["blocks", "floats"],
    "AWQ, floats": ["integers", "floats"],
    "all": ["blocks", "integers", "floats"],
}
BLOCK_TYPE = "Q5_1"
"""Of the tiny file's matrices: none of the forms that are made at load."""
HEADS = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
SHAPE = HEADS | {"hidden_size": 64, "intermediate_size": 96}
BLOCK_SIZE = 16
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
SET_WITHOUT_BF16 = Isa.AVX2
PROMPTS = make_prompts(1, 17, 40)
NAMES_OF_D = {"int16": "float32"}


class Row(NamedTuple):
    """What the table says about one kind of model under one pair of options."""

    kind: str
    dtype: str
    quantization: str
    weights: str
    factors: str
    kv: str
    tokens: str


def rows() -> Iterator[Row]:
    """A row of the table for each model, dtype and quantization that it names."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(HEAD)
    for line in table.split("\n\n")[0].splitlines()[2:]:
        model, dtypes, forms, *rest = [cell.strip() for cell in line.strip("|").split("|")]
        names = (re.findall(r"`([\w-]+)`", cell) for cell in (dtypes, forms))
        for kind, dtype, form in itertools.product(KINDS[model], *names):
            yield Row(kind, dtype, form, *rest)


ROWS = list(rows())
KV_HEAD = "| runs | `--dtype` | `--kv-cache-dtype auto` |"
SCALE_BYTES = 4
KV_DTYPES = get_args(CacheConfig.model_fields["kv_cache_dtype"].annotation)


class KvRow(NamedTuple):
    """What the table of K and V says about one pair of options."""

    runs: str
    dtype: str
    kv_dtype: str
    chosen: str


def kv_rows() -> Iterator[KvRow]:
    _, _, table = PAGE.read_text(encoding="utf-8").partition(KV_HEAD)
    for line in table.split("\n\n")[0].splitlines()[2:]:
        runs, dtypes, *chosen = [cell.strip() for cell in line.strip("|").split("|")]
        for dtype in re.findall(r"`(\w+)`", dtypes):
            for kv_dtype, cell in zip(KV_DTYPES, chosen, strict=True):
                yield KvRow(runs, dtype, kv_dtype, cell)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A file in blocks, a directory of 16-bit weights, and one of whole numbers, each with its
    model in transformers."""
    from tests.transformers_demo import load_model

    folder = tmp_path_factory.mktemp("models")
    reference = make_model(folder, "llama2", **SHAPE)
    remove_files(folder, *WEIGHTS)
    reference.to(torch.bfloat16).save_pretrained(folder)
    file = make_gguf(folder / "m.gguf", reference.float(), "llama", kind_of=lambda _: BLOCK_TYPE)
    awq = tmp_path_factory.mktemp("awq")
    decoded = save_quantised(awq, "llama2", partial(in_awq, group_size=32), AWQ, **SHAPE)
    config = json.loads((awq / "config.json").read_text()) | {"dtype": "bfloat16"}
    (awq / "config.json").write_text(json.dumps(config))
    return {
        "blocks": (file, load_model(file)),
        "floats": (folder, reference),
        "integers": (awq, decoded),
    }


def test_the_table_has_each_pair_of_options_once() -> None:
    choices = [get_args(ModelConfig.model_fields["quantization"].annotation)]
    dtypes = get_args(ModelConfig.model_fields["dtype"].annotation)
    every = itertools.product(["blocks", "floats", "integers"], dtypes, *choices)
    assert sorted(row[:3] for row in ROWS) == sorted(every)


@pytest.mark.parametrize("has_bf16", [True, False])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:3]))
def test_a_worker_chooses_what_the_table_says(
    row: Row,
    has_bf16: bool,
    models: dict[str, tuple[Path, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, reference = models[row.kind]
    if not has_bf16:
        monkeypatch.setenv(ISA_VARIABLE, SET_WITHOUT_BF16.name)
    half = dtype_for_half(torch.device("cpu"))
    if has_bf16 and half is not torch.bfloat16:
        pytest.skip("this processor has no BF16 instructions")
    options = {"dtype": row.dtype, "quantization": row.quantization, "block_size": BLOCK_SIZE}
    if row.weights == "refused":
        with pytest.raises(ModelError, match=f"quantization is '{row.quantization}'"):
            make_runner(path, **options)
        return
    runner = make_runner(path, **options)
    dtype = half if row.dtype == "auto" else getattr(torch, NAMES_OF_D.get(row.dtype, row.dtype))
    in_registers = half is not torch.bfloat16 and isinstance(runner.executor, NativeExecutor)
    size = 4 if in_registers else dtype.itemsize  # of bfloat16 that is computed in float32
    assert row.kv == "D" and bytes_of_k(runner, reference) == size
    program = runner.executor.program if isinstance(runner.executor, NativeExecutor) else None
    assert (program is None) is row.weights.endswith("in PyTorch")
    assert runner.model.dtype == str(dtype).removeprefix("torch.")
    if program is None:
        assert (row.factors, row.tokens) == ("D", "")
        return
    assert program.isa is max(available_isas())
    types = {*re.findall(r"\d of (\w+)", program.weights)}
    assert types == named_types(row, dtype)
    assert row.factors == (program.arithmetic if "bits" in program.arithmetic else "D")
    assert_tokens(row, runner, reference)


@pytest.mark.parametrize("row", list(kv_rows()), ids="-".join)
def test_k_and_v_have_the_type_that_the_table_says(
    row: KvRow, models: dict[str, tuple[Path, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reference = models["floats"]
    if "without BF16" in row.runs:
        monkeypatch.setenv(ISA_VARIABLE, SET_WITHOUT_BF16.name)
    if "with BF16" in row.runs and dtype_for_half(torch.device("cpu")) is not torch.bfloat16:
        pytest.skip("this processor has no BF16 instructions")
    backend = "auto" if row.runs.startswith("natively") else "torch"
    options = {"dtype": row.dtype, "kv_cache_dtype": row.kv_dtype, "block_size": BLOCK_SIZE}
    if row.chosen == "refused":
        with pytest.raises(ModelError, match=f"kv_cache_dtype is '{row.kv_dtype}'"):
            make_runner(path, cpu_backend=backend, **options)
        return
    runner = make_runner(path, cpu_backend=backend, **options)
    assert isinstance(runner.executor, NativeExecutor) is (backend == "auto")
    assert runner.model.numerics.kv_cache_dtype == row.chosen
    dtype = torch.float8_e4m3fn if row.chosen == "fp8_e4m3" else getattr(torch, row.chosen)
    scale = SCALE_BYTES if dtype is torch.int8 else 0
    assert bytes_of_k(runner, reference) == dtype.itemsize + scale / HEADS["head_dim"]


def named_types(row: Row, dtype: torch.dtype) -> set[str]:
    of_model = BLOCK_TYPE if row.kind == "blocks" else "BF16"
    in_dtype = of_model if dtype is torch.float32 else "BF16"
    own = {"as in the file": {of_model}, "D": {in_dtype}}
    if row.kind == "integers":  # whose embedding and head are floats of 32 bits
        in_dtype = "F32" if dtype is torch.float32 else "BF16"
        own = {"as in the file": {"INT4_G32", in_dtype}, "D": {in_dtype}}
    return own.get(row.weights) or {*re.findall(r"Q\d_\d", row.weights)}


def bytes_of_k(runner: Any, reference: Any) -> float:
    """Bytes of an element of K, with scales; K and V of a token have as many."""
    num_layers = reference.config.num_hidden_layers
    of_token = 2 * HEADS["num_key_value_heads"] * HEADS["head_dim"]
    return runner.profile().block_bytes / (num_layers * BLOCK_SIZE * of_token)


def assert_tokens(row: Row, runner: LocalRunner, reference: Any) -> None:
    runner.init_cache_engine(num_gpu_blocks=40, num_cpu_blocks=0)
    together = Driver(runner=runner).generate(PROMPTS, num_tokens=8)
    assert row.tokens.startswith("the same in any batch")
    alone = [Driver(runner=runner, chunk=7).generate([p], num_tokens=8)[0] for p in PROMPTS]
    assert alone == together
    if row.tokens.endswith("those of transformers"):
        assert together == [reference_tokens(reference, prompt, 8) for prompt in PROMPTS]
    else:
        assert row.dtype != "float32" or row.quantization in ("int8", "int4")  # promised no less
