"""How layers are divided into pipeline stages, and that a stage reads its own tensors alone."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.startup import ignore_progress
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.runner.loading.gguf_model import GGUFSource
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from signalbox_worker.runner.loading.layer_partition import divided, stage_layers
from signalbox_worker.runner.loading.opened_model import OpenedModel, open_with_config
from signalbox_worker.runner.ranks.rank_shard import load_shard
from signalbox_worker.runner.ranks.service.rank_messages import Start
from tests.gpu_worker.quantised_models import in_awq, save_quantised
from tests.gpu_worker.runner.loading.gguf_files import make_gguf
from tests.gpu_worker.tiny_models import make_llama, make_model

SIZES = st.integers(0, 50)


def largest(counts: tuple[int, ...], layers: list[int], head: int) -> Fraction:
    """Returns the largest share of a stage in the time of a prompt or of a decode."""
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    sizes = [sum(layers[start:end]) for start, end in pairwise(ends)]
    decode = [*sizes[:-1], sizes[-1] + head]
    return max(Fraction(max(sizes), sum(sizes) or 1), Fraction(max(decode), sum(decode) or 1))


@given(st.lists(SIZES, min_size=2, max_size=8), SIZES, st.integers(2, 4))
def test_the_largest_stage_is_as_small_as_can_be(
    layers: list[int], head: int, num_stages: int
) -> None:
    num_stages = min(num_stages, len(layers))
    found = divided(layers, head, num_stages=num_stages)
    assert len(found) == num_stages and min(found) >= 1 and sum(found) == len(layers)
    cuts = combinations(range(1, len(layers)), num_stages - 1)
    others = [tuple(b - a for a, b in pairwise((0, *cut, len(layers)))) for cut in cuts]
    best = min(largest(one, layers, head) for one in others)
    assert float(largest(found, layers, head)) == pytest.approx(float(best))  # the code has floats


def opened(path: Path, **options: Any) -> OpenedModel:
    return open_with_config(ModelConfig(model=str(path), **options), ignore_progress)


def counts_of(model: OpenedModel, parallel: ParallelConfig) -> list[int]:
    """Returns the layers of each stage, the first stage first."""
    ranks = [replace(parallel, rank=rank) for rank in range(parallel.pipeline_parallel_size)]
    return [len(stage_layers(model, rank)) for rank in reversed(ranks)]


def test_the_head_counts_and_the_embedding_does_not(tmp_path: Path) -> None:
    make_model(tmp_path, "llama2", num_hidden_layers=6, vocab_size=900)
    two = ParallelConfig(pipeline_parallel_size=3)
    assert counts_of(opened(tmp_path), two) == [2, 3, 1]
    told = replace(two, layer_partition=(3, 1, 2))
    assert counts_of(opened(tmp_path), told) == [3, 1, 2]


@pytest.mark.parametrize(
    ("family", "parallel", "message"),
    [
        ("llama3", {"pipeline_parallel_size": 4}, "is 4, but the model has 3 layers; use at most"),
        (
            "llama3",
            {"pipeline_parallel_size": 2, "layer_partition": (1, 1)},
            "pipeline_layer_partition is 1,1; it must be 2 numbers .* sum 3",
        ),
        (
            "stablelm",
            {"pipeline_parallel_size": 2},
            "StableLmForCausalLM is computed in one stage alone; use 1: ",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused(
    family: str, parallel: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family)
    with pytest.raises(ModelError, match=message):
        stage_layers(opened(tmp_path), ParallelConfig(**parallel))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names of the tensors whose values or blocks are read."""
    found: set[str] = set()

    def spying(name: str, tensor: StoredTensor) -> StoredTensor:
        def note(read: Any) -> Any:
            def noted(*rows: int) -> Any:
                found.add(name)
                return read(*rows)

            return read and noted

        parts = {end: spying(name, part) for end, part in tensor.parts.items()}
        blocks = tensor.blocks
        if blocks is not None:
            rows = note(blocks.read_rows)
            blocks = replace(blocks, read=note(blocks.read), read_rows=rows)
        return StoredTensor(tensor.shape, note(tensor.read), blocks, parts)

    for source in (GGUFSource, DirectorySource):
        stored = source.stored

        def spied(self: Any, stored: Any = stored) -> dict[str, StoredTensor]:
            return {name: spying(name, tensor) for name, tensor in stored(self).items()}

        monkeypatch.setattr(source, "stored", spied)
    yield found


@pytest.mark.parametrize("form", ["native", "torch", "gguf", "gguf-torch", "gpt2", "awq"])
def test_a_stage_reads_its_own_tensors_alone(form: str, tmp_path: Path, reads: set[str]) -> None:
    path, options = tmp_path, {"cpu_backend": "torch"}
    if form.startswith("gguf"):
        path = tmp_path / "m.gguf"
        reference = make_model(
            tmp_path, "llama2", head_dim=32, hidden_size=96, intermediate_size=96
        )
        make_gguf(path, reference, "llama", kind_of=lambda _: "Q8_0")
    elif form == "awq":
        config = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}
        save_quantised(tmp_path, "llama2", partial(in_awq, group_size=64), config)
    elif form == "gpt2":
        make_model(tmp_path, "gpt2")
    else:
        make_llama(tmp_path)
    if form in ("native", "gguf"):
        options = {"cpu_backend": "auto"}
    whole = set(opened(path).source.stored())
    of_stages = []
    for rank in reversed(range(3)):
        reads.clear()
        parallel = ParallelConfig(rank=rank, pipeline_parallel_size=3, layer_partition=(1, 1, 1))
        device = DeviceConfig(device="cpu", **options)
        model = ModelConfig(model=str(path))
        load_shard(Start(model=model, cache=CacheConfig(), parallel=parallel, device=device))
        of_stages.append(set(reads))
    first, middle, last = of_stages
    assert all(".1." in name for name in middle) and middle
    assert not {name for name in first if ".1." in name or ".2." in name}
    assert not {name for name in last if ".1." in name or ".0." in name}
    tables = first & last  # a tied table lies on both ends
    assert tables == {name for name in tables if "embed" in name or "wte" in name}
    assert first | middle | last == whole
