"""What is refused before anything is started: a broken model, or one that is too large."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signalbox.stack import machine_info, model_check
from signalbox.stack.model_check import WORKER_BYTES, check_model
from signalbox_contract.startup import ignore_progress
from signalbox_kernels import native
from signalbox_kernels.native import ISA_VARIABLE
from signalbox_worker.config import GIB, ModelError
from signalbox_worker.files.hub.download import download
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.fake_hub import point_at, running_hub

MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"


def make_directory(
    path: Path,
    *,
    num_values: int,
    is_cut_off: bool = False,
    architecture: str = "LlamaForCausalLM",
) -> str:
    """A model of 16-bit weights whose file has holes instead of data."""
    (path / "config.json").write_text(
        json.dumps({"architectures": [architecture], "dtype": "bfloat16"})
    )
    num_bytes = 2 * num_values
    entry = {"dtype": "BF16", "shape": [num_values], "data_offsets": [0, num_bytes]}
    header = json.dumps({"model.layers.0.mlp.up_proj.weight": entry}).encode()
    file = path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(file, 8 + len(header) + num_bytes - is_cut_off)
    return str(path)


@pytest.fixture
def machine_with_bf16(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(machine_info, "cpu_features", lambda: ["avx512_bf16"])
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.setattr(model_check, "visible_gpus", list)
    return monkeypatch


def have_free(monkeypatch: pytest.MonkeyPatch, num_bytes: float) -> None:
    """Lets so much memory be free for weights, beside one worker."""
    monkeypatch.setattr(model_check, "available_ram", lambda: int(num_bytes) + WORKER_BYTES)


@pytest.mark.parametrize(
    ("flags", "form", "takes"),
    [
        ({}, "bfloat16", 2.0),
        ({"dtype": "float32"}, "its own types", 2.0),
        ({"dtype": "float32", "cpu_backend": "torch"}, "float32", 4.0),
        ({"quantization": "int8"}, "int8", 34 / 32),
        ({"quantization": "int4"}, "int4", 20 / 32),
    ],
)
def test_weights_must_fit_in_the_form_that_is_chosen(
    tmp_path: Path,
    machine_with_bf16: pytest.MonkeyPatch,
    flags: dict[str, Any],
    form: str,
    takes: float,
) -> None:
    settings = WorkerSettings(model=make_directory(tmp_path, num_values=GIB), **flags)
    header = 200 if form == "its own types" else 0  # which counts the whole file
    have_free(machine_with_bf16, takes * GIB + header)
    check_model(settings)
    have_free(machine_with_bf16, takes * GIB - 1)
    with pytest.raises(MemoryError, match=f"takes {takes:.1f} GiB in {form}, and weights of at"):
        check_model(settings)


@pytest.mark.model
@pytest.mark.parametrize(
    ("flags", "form"),
    [
        ({}, "gguf"),
        ({"dtype": "bfloat16"}, "gguf"),
        ({"dtype": "float32"}, "gguf"),
        ({"dtype": "int16", "quantization": "none"}, "its own types"),
        ({"dtype": "float32", "quantization": "none"}, "its own types"),
        ({"dtype": "float32", "cpu_backend": "torch"}, "float32"),
        ({"quantization": "none"}, "bfloat16"),
        ({"cpu_backend": "torch"}, "bfloat16"),
        ({"attention_backend": "torch"}, "bfloat16"),
        ({"tensor_parallel_size": 2}, "gguf"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_blocks_of_a_file_are_counted_as_they_are_where_they_run(
    machine_with_bf16: pytest.MonkeyPatch, flags: dict[str, Any], form: str
) -> None:
    settings = WorkerSettings(model=MODEL, **flags)
    have_free(machine_with_bf16, 0)
    with pytest.raises(MemoryError, match=rf"takes [\d.]+ \w+ in {form}, and weights of at"):
        check_model(settings)


def test_a_family_without_a_native_program_is_told_of_no_form_that_needs_one(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    model = make_directory(tmp_path, num_values=GIB, architecture="GPT2LMHeadModel")
    have_free(machine_with_bf16, 1.5 * GIB)
    with pytest.raises(MemoryError, match="GiB fit in the memory that is free; use a smaller"):
        check_model(WorkerSettings(model=model))


def test_a_forced_instruction_set_without_bf16_computes_in_float32_with_16_bits(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    settings = WorkerSettings(model=make_directory(tmp_path, num_values=GIB))
    have_free(machine_with_bf16, 2 * GIB + 200)  # and the file's header
    check_model(settings)
    machine_with_bf16.setenv(ISA_VARIABLE, "avx512_vnni")
    check_model(settings)
    have_free(machine_with_bf16, 2 * GIB - 1)
    with pytest.raises(MemoryError, match=r"takes 2\.0 GiB in its own types"):
        check_model(settings)


@pytest.mark.parametrize(
    ("limit", "flags", "form"),
    [
        ("", {}, "its own types"),  # no set of Arm multiplies bfloat16
        ("", {"cpu_backend": "torch"}, "bfloat16"),
        ("neon_i8mm", {"cpu_backend": "torch"}, "float32"),
    ],
)
def test_on_arm_bfloat16_is_what_pytorch_computes_in_unless_a_set_is_forced(
    tmp_path: Path,
    machine_with_bf16: pytest.MonkeyPatch,
    limit: str,
    flags: dict[str, Any],
    form: str,
) -> None:
    machine_with_bf16.setattr(native, "machine", lambda: "aarch64")
    machine_with_bf16.setattr(machine_info, "cpu_features", lambda: ["asimd", "i8mm", "bf16"])
    machine_with_bf16.setenv(ISA_VARIABLE, limit)
    settings = WorkerSettings(model=make_directory(tmp_path, num_values=GIB), **flags)
    have_free(machine_with_bf16, 0)
    with pytest.raises(MemoryError, match=f"in {form}, and weights"):
        check_model(settings)


def test_the_most_exact_form_that_fits_is_named(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    settings = WorkerSettings(model=make_directory(tmp_path, num_values=GIB))
    for free, remedy in (
        (1.5, "1.5 GiB fit in the memory that is free; --quantization int8 takes 1.1 GiB"),
        (1.0, "1.0 GiB fit in the memory that is free; --quantization int4 takes 0.6 GiB"),
        (0.2, "0.2 GiB fit in the memory that is free; use a smaller model"),
    ):
        have_free(machine_with_bf16, free * GIB)
        with pytest.raises(MemoryError, match=remedy):
            check_model(settings)


@pytest.mark.model
def test_the_blocks_of_a_file_are_named_before_others_that_are_made_of_them(
    machine_with_bf16: pytest.MonkeyPatch,
) -> None:
    have_free(machine_with_bf16, 200 << 20)  # int8 would fit, too
    with pytest.raises(MemoryError, match=r"; --quantization gguf takes \d\d MiB"):
        check_model(WorkerSettings(model=MODEL, quantization="none"))


def test_each_worker_takes_its_own_copy_beside_its_cache(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    model = make_directory(tmp_path, num_values=GIB)
    have_free(machine_with_bf16, 3 * GIB)
    check_model(WorkerSettings(model=model))
    with pytest.raises(MemoryError, match="for each of 2 workers; --quantization int8"):
        check_model(WorkerSettings(model=model), num_workers=2)
    with pytest.raises(MemoryError, match=r"at most 1\.5 GiB fit .*; lower --kv-cache-memory or"):
        check_model(WorkerSettings(model=model, kv_cache_memory=1.5))


def test_memory_of_a_gpu_is_not_judged_by_that_of_the_cpu(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    model = make_directory(tmp_path, num_values=GIB)
    have_free(machine_with_bf16, GIB)
    machine_with_bf16.setattr(model_check, "visible_gpus", lambda: ["0"])
    check_model(WorkerSettings(model=model))
    check_model(WorkerSettings(model=model, device="cuda"))
    with pytest.raises(MemoryError):
        check_model(WorkerSettings(model=model, device="cpu"))


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    model = make_directory(tmp_path, num_values=1 << 10, is_cut_off=True)
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read \(it ends early\)"):
        check_model(WorkerSettings(model=model))


def test_a_folder_of_adapters_that_is_not_there_is_refused(tmp_path: Path) -> None:
    model = make_directory(tmp_path, num_values=64)
    check_model(WorkerSettings(model=model, adapter_dir=tmp_path))
    with pytest.raises(FileNotFoundError, match=r"--adapter-dir is .*gone': there is no such"):
        check_model(WorkerSettings(model=model, adapter_dir=tmp_path / "gone"))


@pytest.mark.model
def test_a_gguf_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.gguf"
    with Path(MODEL).open("rb") as whole:
        file.write_bytes(whole.read(4 << 20))
    with pytest.raises(ModelError, match="it is cut off in tensor"):
        check_model(WorkerSettings(model=str(file)))


def gguf_field(name: str, kind: int, value: bytes) -> bytes:
    """A GGUF file with this field alone; `kind` is GGUF's number of the value's type."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    return head + struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


U32, FLOAT, TEXT, LIST = 4, 6, 8, 9
EMPTY_LIST = struct.pack("<IQ", U32, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (gguf_field("a", LIST, struct.pack("<IQ", LIST, 1) * 5000 + EMPTY_LIST), "too deep"),
        (gguf_field("general.alignment", U32, bytes(4)), "alignment is 0"),
        (gguf_field("a", 13, bytes(8)), "type 13, which is not known"),
        (gguf_field("a", LIST, struct.pack("<IQQ", 13, 1, 0)), "type 13, which is not known"),
        (gguf_field("general.alignment", LIST, EMPTY_LIST), "no whole number"),
        (gguf_field("split.count", LIST, EMPTY_LIST), "no whole number"),
        (gguf_field("split.count", TEXT, struct.pack("<Q3s", 3, b"two")), "no whole number"),
        (gguf_field("split.count", FLOAT, struct.pack("<f", float("inf"))), "no whole number"),
    ],
)
def test_a_gguf_file_with_senseless_fields_is_named(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "odd.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as raised:
        check_model(WorkerSettings(model=str(file)))
    assert str(file) in str(raised.value) and "\n" not in str(raised.value)


SHARD, INDEX = "model.safetensors", "model.safetensors.index.json"


def header(**fields: object) -> bytes:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 0], **fields}
    return json.dumps({"weight": entry}).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (SHARD, header(shape="ab")),
        (SHARD, header(shape=None)),
        (SHARD, header(shape=[[1]])),
        (SHARD, header(shape=[-1])),
        (SHARD, b"[" * 100_000),
        (INDEX, b'{"weight_map": ["a"]}'),
        (INDEX, b'{"weight_map": {"a": 5}}'),
        (INDEX, b"{}"),
        (INDEX, b"[" * 100_000),
        ("config.json", b"[" * 100_000),
    ],
)
def test_a_directory_with_a_senseless_file_is_refused_by_the_files_name(
    name: str, content: bytes, tmp_path: Path
) -> None:
    model = make_directory(tmp_path, num_values=1)
    is_shard = name == SHARD
    if name == INDEX:
        (tmp_path / SHARD).unlink()  # the index counts where the weights are not in this one file
    (tmp_path / name).write_bytes(len(content).to_bytes(8, "little") * is_shard + content)
    with pytest.raises(ModelError, match=f"{name} ") as raised:
        check_model(WorkerSettings(model=model))
    assert "\n" not in str(raised.value)


def test_an_adapter_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    for folder, missing in (("nowhere", "adapter_config.json"), (".", "adapter_model.safetensors")):
        settings = WorkerSettings(model="org/name", lora=(f"sql={tmp_path / folder}",))
        with pytest.raises(ModelError, match=rf"{missing} of the adapter sql \(No such file"):
            check_model(settings)


def test_a_model_on_the_hub_must_fit_before_it_is_fetched(
    tmp_path: Path, machine_with_bf16: pytest.MonkeyPatch
) -> None:
    """Nor is the hub asked where the cache has it; one that does not answer is for the worker."""
    settings = WorkerSettings(model="some-org/some-model")
    machine_with_bf16.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    have_free(machine_with_bf16, 64)
    with running_hub(tmp_path / "served") as hub:
        point_at(machine_with_bf16, hub.url)
        make_directory(hub.repository("some-org/some-model"), num_values=1 << 20)
        with pytest.raises(MemoryError, match=r"some-org/some-model takes 2 MiB in bfloat16"):
            check_model(settings)
        assert 0 < hub.num_sent < 1 << 20
        have_free(machine_with_bf16, GIB)
        download(settings.model, None, ignore_progress)
        have_free(machine_with_bf16, 64)
        hub.asked.clear()
        with pytest.raises(MemoryError, match=r"some-org/some-model takes 2 MiB in bfloat16"):
            check_model(settings)
        assert hub.asked == []
    check_model(WorkerSettings(model="some-org/another"))


@pytest.mark.model
def test_the_check_needs_no_pytorch() -> None:
    code = (
        "import sys; from signalbox.stack.model_check import check_model;"
        "from signalbox_worker.service.worker_settings import WorkerSettings;"
        f"check_model(WorkerSettings(model={MODEL!r}));"
        "sys.exit(bool({'torch', 'transformers'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
