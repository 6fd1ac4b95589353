"""Workers whose blocks may differ announce different formats, or none."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from signalbox_contract.model import WorkerCapacity
from signalbox_worker.models.plugins import import_plugins
from signalbox_worker.runner.loading import block_content
from signalbox_worker.runner.loading.block_content import (
    BlockContent,
    foreign_code,
    format_of_ranks,
)

CONTENT = BlockContent((), block_bytes=32, description="layout", fingerprint="ab")
CAPACITY = WorkerCapacity(
    block_size=16,
    num_gpu_blocks=8,
    num_cpu_blocks=2,
    block_bytes=32,
    max_num_seqs=4,
    max_num_batched_tokens=64,
)


def test_equal_content_has_one_format_and_other_content_another() -> None:
    contents = [CONTENT, replace(CONTENT, description="other"), replace(CONTENT, fingerprint="cd")]
    formats = [content.format_of(CAPACITY) for content in contents]
    assert len(set(formats)) == 3
    assert replace(CONTENT).format_of(replace(CAPACITY, num_cpu_blocks=5)) == formats[0]


def test_blocks_belong_to_the_sources_that_were_there_when_the_model_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities = []
    for text in ("old", "new"):  # the package is replaced while a worker runs
        (tmp_path / "module.py").write_text("old")
        monkeypatch.setattr(block_content, "_SOURCES", (tmp_path,))
        block_content.own_sources.cache_clear()
        CONTENT.format_of(CAPACITY)
        (tmp_path / "module.py").write_text(text)
        with ThreadPoolExecutor() as thread:  # whose priority it lowers
            identities.append(thread.submit(CONTENT.identity, "", {}, lambda: False).result())
    block_content.own_sources.cache_clear()
    assert identities[0] == identities[1]


def test_workers_that_exchange_nothing_have_no_format() -> None:
    assert CONTENT.format_of(replace(CAPACITY, num_cpu_blocks=0)) == ""


def test_the_format_of_a_worker_is_that_of_the_shares_of_its_ranks_in_their_order() -> None:
    assert format_of_ranks(["a", "b"]) == format_of_ranks(["a", "b"])
    formats = [["a"], ["a", "a"], ["a", "b"], ["b", "a"]]
    assert len(set(map(format_of_ranks, formats))) == 4
    assert format_of_ranks(["a", ""]) == "", "a rank exchanges nothing"


def test_all_code_of_a_plugins_package_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "plugin_of_this_test"
    (package / "layers").mkdir(parents=True)
    files = [package / name for name in ("__init__.py", "layers/attention.py", "model.py")]
    for path in (*files, package / "notes.txt", tmp_path / "single_of_this_test.py"):
        path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    try:
        config = {"architectures": []}
        names = ["plugin_of_this_test.model", "single_of_this_test"]
        assert import_plugins(names, config) == names
        assert foreign_code(names, None) == [*files, tmp_path / "single_of_this_test.py"]
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
