"""Writes docs/reference/models.md: each family, how it is computed, and what it is compared with.

The rows come from the registry, the table of GGUF architectures and that of text parts; the
comparisons from the tests that `pytest.mark.compares` marks, and from what these are parametrised
with. A test that is called `test_random_..._equal_transformers` needs no mark. `make docs` runs it;
a test compares, and wants a comparison of each row.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.names import FAMILIES, MISTRAL, MIXTRAL
from signalbox_worker.files.checkpoints.text_part import SERVED, TABLE
from signalbox_worker.models import ModelSpec, architectures, model_spec
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.runner.loading.gguf_model import GGUFSource
from signalbox_worker.runner.native.adapter_modules import module_shapes
from signalbox_worker.runner.native.tensor_share import why_not_divided
from tests.gpu_worker.tiny_models import architecture_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "models.md"
CONVERTED = "tests/gpu_worker/runner/loading/converted"
"""Folder with files of llama.cpp's converter."""
MARK = "compares"
NATIVELY, IN_PYTORCH, THROUGH = "natively", "in PyTorch", "through transformers"
"""Ways to compute a model; marks of tests begin with them."""
_UNMARKED = re.compile(r"\btest_random_\w+_equal_transformers\b")
_OF_UNMARKED: dict[str, Any] = {"how": f"{NATIVELY} in random shapes", "of": architecture_of}
_CAUSAL = "ForCausalLM"
_USUAL: tuple[dict[str, Any], ...] = (
    {"head_dim": 128, "num_experts_per_tok": 2},
    {"layer_types": ["conv", "full_attention"] * 16},
    {"layer_types": ["linear_attention", "full_attention"] * 16},
)
"""Fields that are added where the defaults of transformers describe no model."""
_HEAD = """\
# Families of models

The families that are served, by the names in config.json (`architectures`), and what tests compare
them with. [Models](../how_to/models.md) has how a model is named and fetched, and what
`signalbox doctor MODEL` says of one before a download.

A family that runs **natively** is computed by a C++ program on a CPU, in each of the
[forms of weights](weights.md), of encoders in floats. The column *else* is for CUDA,
`--cpu-backend torch`, and what the program lacks; a line at start names that. A model that runs
**through transformers** is computed by one rank, without adapters, and without a `--quantization`
that is made at load. The columns *stages* (`--pipeline-parallel-size`), *ranks*
(`--tensor-parallel-size`) and *adapters* are about the defaults of config.json; a size that cannot
be divided is refused by name.
"""
_RECURRENT = """\
A sequence of a family with recurrent layers keeps a state of one size beside its K and V. Natively
such families are served as others are, with these refusals, each of which names its reason:

- CUDA, `--cpu-backend torch` and the backends of PyTorch, float16, and blocks whose size is no
  multiple of 16: only native programs compute recurrent layers.
- `--runner pooling`, and stores of objects in `--kv-store`.
- Ranks that do not divide the value heads of the delta rule, or the heads of Mamba-2 and its
  groups, unless there is one group; of the delta rule's heads of keys, ranks may share each. A
  rank has blocks of 32 of LFM2's channels, at least one.
- A stage none of whose layers attends: it has no blocks for states, so name other layers by
  `--pipeline-layer-partition`.
- Adapters of convolutions, which PEFT has as another kind of matrix, and of Qwen3-Next's inputs of
  recurrent layers (`in_proj_qkvz`, `in_proj_ba`), whose rows programs have in another order.
- Convolutions of more than 4 inputs, channels that are no multiple of 16, and limits of Mamba-2's
  time steps.

With the defaults of config.json a state has:
"""
_COMPARED_HEAD = """\
## Comparisons

Each of these tests makes a model of each family that it names with random weights, unless it says
otherwise, and compares tokens and log probabilities in float32, or vectors and scores, with those
of transformers or sentence-transformers.

| compared | test |
|---|---|
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A test that compares families with another implementation."""

    how: str
    path: str
    """Of the module, from the root of the repository."""
    test: str
    architectures: frozenset[str]
    """What it is about, as config.json says it."""
    gguf: frozenset[str]
    """What it is about, as GGUF files say it."""


@dataclass(frozen=True, slots=True)
class Family:
    """The registered architectures that one function reads the configuration of."""

    specs: tuple[ModelSpec, ...]
    config: Any
    """With the defaults of transformers."""

    @property
    def names(self) -> list[str]:
        return [spec.architecture for spec in self.specs]

    @property
    def natively(self) -> list[str]:
        """Returns the architectures that native programs are for."""
        is_encoder = isinstance(self.config, EncoderConfig)
        return [spec.architecture for spec in self.specs if spec.is_llama or is_encoder]


@cache
def comparisons() -> tuple[Comparison, ...]:
    """Returns the marked tests, and those that need no mark. Imports their modules."""
    found = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if f"@pytest.mark.{MARK}(" in text or _UNMARKED.search(text):
            path = file.relative_to(ROOT)
            module = importlib.import_module(".".join(path.with_suffix("").parts))
            for name, test in vars(module).items():
                marks = {mark.name: mark.kwargs for mark in getattr(test, "pytestmark", ())}
                said = marks.get(MARK, _OF_UNMARKED if _UNMARKED.fullmatch(name) else None)
                if name.startswith("test_") and said is not None:
                    names, kinds = (
                        frozenset(_named(said.get(part, ()), test)) for part in ("of", "gguf")
                    )
                    one = Comparison(said["how"], path.as_posix(), name, names, kinds)
                    found.append(one)
    return tuple(found)


def _named(of: Callable[[str], str] | Iterable[str], test: Any) -> Iterator[str]:
    """Yields what a test is about: what a mark lists, or makes of the parameter of families."""
    if not callable(of):
        yield from of
        return
    for mark in test.pytestmark:
        if mark.name != "parametrize":
            continue
        names, values = mark.args
        names = [names] if isinstance(names, str) else list(names)
        for place, name in enumerate(names):
            if name in ("family", "name"):
                yield from (of(value if len(names) == 1 else value[place]) for value in values)


def families() -> list[Family]:
    """Returns the registered architectures by the function that reads their config.json."""
    groups: dict[Any, list[ModelSpec]] = {}
    for name in sorted(architectures()):
        spec = model_spec({"architectures": [name]})
        groups.setdefault(spec.read_config, []).append(spec)
    return [
        Family(
            tuple(sorted(specs, key=lambda spec: (not spec.generates, len(spec.architecture)))),
            _usual_config(specs[0]),
        )
        for specs in groups.values()
    ]


def _usual_config(spec: ModelSpec) -> Any:
    """Returns a configuration of the defaults of transformers, with some of `_USUAL` if need be."""
    for fields in ({}, *_USUAL):
        try:
            return spec.read_config({"architectures": [spec.architecture]} | fields)
        except ModelError as error:
            reason = error
    raise reason


def gguf_architectures() -> dict[str, list[str]]:
    """Returns the architectures of config.json that a GGUF file of each kind may be."""
    found = {kind: [family.architecture] for kind, family in FAMILIES.items()}
    found["llama"] += [MISTRAL.architecture, MIXTRAL.architecture]
    found["mistral3"].append(MISTRAL.architecture)
    for file in sorted((ROOT / CONVERTED).glob("*.gguf")):
        source = GGUFSource(file)
        kind = source.kind
        found[kind] += [one for one in source.config["architectures"] if one not in found[kind]]
    return found


def text_parts() -> dict[str, str | None]:
    """Returns the registered architecture of each wrapper's usual text part; None if there is
    none."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: table["architectures"].get(table["types"][name]) for name in SERVED}


def how_computed(architecture: str | None) -> str:
    """Returns how a model of an architecture is computed on a CPU."""
    for family in families():
        if architecture in family.natively:
            return NATIVELY
        if architecture in family.names:
            return IN_PYTORCH
    return THROUGH


def compared(names: Iterable[str]) -> list[str]:
    """Returns how one of several architectures is compared."""
    wanted = {*names}
    return [one.how for one in comparisons() if one.architectures & wanted]


def compared_files(kind: str) -> list[str]:
    """Returns how GGUF files of an architecture are compared."""
    return [one.how for one in comparisons() if kind in one.gguf]


def text() -> str:
    """Returns the page."""
    parts = (_HEAD, *_tables(), _COMPARED_HEAD + "".join(_comparison_rows()))
    return "\n".join(parts)


def _tables() -> Iterator[str]:
    found = sorted(families(), key=lambda one: one.names[0].lower())
    generate = [one for one in found if one.specs[0].generates]
    yield _table(
        "Models that generate",
        ("architectures", "on a CPU", "else", "pools", "stages", "ranks", "adapters", "compared"),
        map(_generating_row, generate),
    )
    yield _table(
        "Models that pool alone",
        ("architectures", "on a CPU", "compared"),
        (
            (_codes(one.names), how_computed(one.names[0]), _list(compared(one.names)))
            for one in found
            if not one.specs[0].generates
        ),
    )
    causal = {name for one in comparisons() for name in one.architectures if name.endswith(_CAUSAL)}
    yield _table(
        "Models through transformers",
        ("architecture", "compared"),
        ((f"`{name}`", _list(compared([name]))) for name in sorted(causal - architectures())),
        before="Any other causal model of transformers is tried without its weights when it is"
        " opened: it is served if all that its layers ask of attention can be done, and else"
        " refused with the reason. These are compared:",
    )
    yield _table(
        "Families with recurrent layers",
        ("architecture", "a sequence keeps"),
        (
            (_codes(one.names), f"{sum(one.config.state_bytes) / 1e6:,.1f} MB")
            for one in generate
            if getattr(one.config, "recurrence", None) is not None
        ),
        before=_RECURRENT.strip(),
    )
    yield _table(
        "Text parts of models that also take images or sound",
        ("config.json says", "usual text part", "on a CPU", "compared"),
        (
            (f"`{name}`", f"`{part}`" if part else "its own", how_computed(part),
             _list(compared([name])))
            for name, part in text_parts().items()
        ),
    )  # fmt: skip
    yield _table(
        "GGUF files",
        ("`general.architecture`", "is", "on a CPU", "compared"),
        (
            (f"`{kind}`", _codes(names), _list(sorted({*map(how_computed, names)})),
             _list(compared_files(kind)))
            for kind, names in sorted(gguf_architectures().items())
        ),
    )  # fmt: skip


def _generating_row(family: Family) -> tuple[str, ...]:
    spec, config = family.specs[0], family.config
    divided = why_not_divided(config, 2) if isinstance(config, DecoderConfig) else None
    pools = [name for name in family.names if name != spec.architecture]
    has_states = getattr(config, "recurrence", None) is not None
    return (
        f"`{spec.architecture}`",
        how_computed(spec.architecture),
        "refused" if has_states else THROUGH if spec.is_native_only else IN_PYTORCH,
        _list(f"`{name}` {how_computed(name)}" for name in pools),
        "yes" if spec.has_stages else "no",
        "yes" if divided is None else f"no: {divided}",
        _adapted(config) if isinstance(config, DecoderConfig) else "refused",
        _list(compared(family.names)),
    )


def _adapted(config: DecoderConfig) -> str:
    """Returns the parts of a layer whose matrices adapters may change."""
    parts = {name.split(".")[-2] for name in module_shapes(config)}
    words = {"self_attn": "attention", "mixer": "all layers"}
    words |= dict.fromkeys(("mlp", "feed_forward", "shared_mlp"), "feed-forward")
    words |= dict.fromkeys(("conv", "mamba", "linear_attn"), "recurrent layers")
    return _list(sorted(words.get(part, part) for part in parts))


def _comparison_rows() -> Iterator[str]:
    for one in sorted(comparisons(), key=lambda one: one.how):
        yield f"| {one.how} | `{one.path}::{one.test}` |\n"


def _table(
    title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, before: str = ""
) -> str:
    lines = [f"## {title}", "", *([before, ""] if before else [])]
    lines += [_row(columns), "|" + "---|" * len(columns), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words)) or "–"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
