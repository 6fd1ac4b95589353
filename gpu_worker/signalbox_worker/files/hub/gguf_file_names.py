"""Names of GGUF files: their parts and quantisations, and which file of several is meant.

Bits per weight are those of Llama 3.1 8B in the table of llama.cpp's tools/quantize/README.md; of
the types that the table lacks, those of the block with 4 % more, as Q4_K_M has over Q4_K's 4.5.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import median

from signalbox_worker.config import ModelError

SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
PREFERRED = "Q4_K_M"

_PART = re.compile(r"-\d{5}-of-\d{5}$")
_QUANTISATION = re.compile(
    r"[._-](?P<label>(?:UD-)?(?:[IT]?Q\d\w*|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))$", re.IGNORECASE
)
_NO_MODEL = re.compile(r"(^|[._-])(mmproj|imatrix)([._-]|$)", re.IGNORECASE)
"""Files of image encoders, and of statistics for quantising."""
_BITS = {
    "IQ1_S": 2.0,
    "IQ1_M": 2.15,
    "IQ2_XXS": 2.38,
    "IQ2_XS": 2.59,
    "IQ2_S": 2.74,
    "IQ2_M": 2.93,
    "IQ3_XXS": 3.25,
    "IQ3_XS": 3.5,
    "IQ3_S": 3.66,
    "IQ3_M": 3.76,
    "IQ4_XS": 4.46,
    "IQ4_NL": 4.68,
    "Q2_K_S": 2.97,
    "Q2_K": 3.16,
    "Q3_K_S": 3.64,
    "Q3_K_M": 4.0,
    "Q3_K_L": 4.3,
    "Q4_0": 4.68,
    "Q4_1": 5.2,
    "Q4_K_S": 4.67,
    "Q4_K_M": 4.89,
    "Q5_0": 5.72,
    "Q5_1": 6.24,
    "Q5_K_S": 5.57,
    "Q5_K_M": 5.7,
    "Q6_K": 6.56,
    "Q8_0": 8.5,
    "BF16": 16.0,
    "F16": 16.0,
    "FP16": 16.0,
    "F32": 32.0,
    "FP32": 32.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFVariant:
    """One model in GGUF: a file, or all parts of a split one."""

    label: str
    """Its quantisation in capitals, or its name if that tells none."""
    files: tuple[str, ...]
    """Paths in the repository or folder, in the order of the parts."""
    num_bytes: int

    @property
    def stem(self) -> str:
        """Name of the file without its part and its suffix."""
        return _PART.sub("", PurePosixPath(self.files[0]).name.removesuffix(".gguf"))


def gguf_name(stem: str) -> str:
    """Returns a file's stem without its part and its quantisation."""
    return _QUANTISATION.sub("", _PART.sub("", stem))


def find_variants(files: Mapping[str, int]) -> list[GGUFVariant]:
    """Returns the models among files, given as path and size in bytes, by size."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in sorted(files):
        stem = path.removesuffix(".gguf")
        if path.endswith(".gguf") and not _NO_MODEL.search(PurePosixPath(stem).name):
            part = _PART.search(stem)  # parts of one division have one number of all parts
            total = "" if part is None else part[0].rpartition("-")[2]
            groups.setdefault((_PART.sub("", stem), total), []).append(path)
    variants = [
        GGUFVariant(
            label=_label(stem), files=tuple(parts), num_bytes=sum(files[part] for part in parts)
        )
        for (stem, _), parts in groups.items()
    ]
    return sorted(variants, key=lambda variant: (variant.num_bytes, variant.files))


def choose_variant(model: str, variants: list[GGUFVariant], tag: str | None) -> GGUFVariant:
    """Returns the variant that `tag` names, by quantisation or file; without one, Q4_K_M's.

    If there is no Q4_K_M, the variant whose size is nearest to what Q4_K_M would take is returned.

    Raises ModelError, which lists the variants, if none or several are meant.
    """
    found = _with_tag(variants, tag or PREFERRED)
    if not found and tag is None:
        found = _nearest(variants)
    if len(found) == 1:
        return found[0]
    if tag is not None and not found:
        raise ModelError(f"{model} has no {tag}; it has {describe(variants)}")
    raise ModelError(
        f"{model} has several GGUF models; name the file that is meant as {model}:FILE; it has"
        f" {', '.join(variant.files[0] for variant in found or variants)}"
    )


def describe(variants: list[GGUFVariant]) -> str:
    """Returns labels and sizes in one line."""
    return ", ".join(f"{one.label} ({format_bytes(one.num_bytes)})" for one in variants)


def format_bytes(num_bytes: int) -> str:
    """Returns a size as GiB, MiB or KiB."""
    for shift, unit in ((30, "GiB"), (20, "MiB")):
        if num_bytes >= 1 << shift:
            return f"{num_bytes / (1 << shift):.1f} {unit}"
    return f"{num_bytes / (1 << 10):.1f} KiB"


def check_parts(model: str, variant: GGUFVariant) -> None:
    """Raises ModelError if a part of a split file is missing."""
    for path in variant.files:
        if match := SPLIT_NAME.fullmatch(path):
            count = int(match[3])
            whole = {f"{match[1]}-{i:05}-of-{match[3]}.gguf" for i in range(1, count + 1)}
            if missing := sorted(whole - {*variant.files}):
                raise ModelError(f"{model} lacks {missing[0]}; take another quantisation")


def _label(stem: str) -> str:
    name = PurePosixPath(stem).name
    match = _QUANTISATION.search(name) or _QUANTISATION.search("-" + name)
    return match["label"].upper() if match else name


def _with_tag(variants: list[GGUFVariant], tag: str) -> list[GGUFVariant]:
    """Returns the variants that match by label; else by the file's name or path; else by its
    end."""
    wanted = tag.lower()
    named = wanted.removesuffix(".gguf")
    for matches in (
        [one for one in variants if one.label.lower() == wanted],
        [one for one in variants if wanted in {file.lower() for file in one.files}],
        [one for one in variants if named in (one.stem.lower(), _first_stem(one).lower())],
        [one for one in variants if re.search(rf"[._-]{re.escape(named)}$", one.stem.lower())],
    ):
        if matches:
            return matches
    return []


def _first_stem(variant: GGUFVariant) -> str:
    return PurePosixPath(variant.files[0]).name.removesuffix(".gguf")


def _nearest(variants: list[GGUFVariant]) -> list[GGUFVariant]:
    """The variant nearest to the size of a Q4_K_M, which the others tell; all if none tells."""
    estimates = [
        one.num_bytes / _BITS[label] * _BITS[PREFERRED]
        for one in variants
        if (label := one.label.removeprefix("UD-")) in _BITS
    ]
    if not estimates or len(variants) < 2:
        return variants
    size = median(estimates)
    return [min(variants, key=lambda one: abs(one.num_bytes - size))]
