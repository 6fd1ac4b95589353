"""Measurements of a part of the GPU benchmark, and the table of all parts."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FAST = 4000.0
"""GB/s of a copy above which a step's fixed costs are a larger share of its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure; `aim` bounds its share of another one, or itself if it is of none."""

    name: str
    value: float
    unit: str
    of: str | None = None
    """Name of the measure that it is compared to, such as a roofline."""
    aim: float | None = None
    aim_if_fast: float | None = None
    """Aim instead of `aim` where what it is compared to is above FAST."""
    is_least: bool = True
    """True if the aim is a minimum, False if a maximum."""
    note: str = ""


@dataclass(slots=True, kw_only=True)
class PartResult:
    """One part: what it found, or why it found nothing."""

    name: str
    measures: list[Measure]
    seconds: float = 0.0
    failure: str = ""
    card: str = ""
    """Clocks, power and temperature as the part ended, in words."""


def check(name: str, *, passed: bool, note: str = "") -> Measure:
    """A probe: 1 if it passed."""
    return Measure(name=name, value=float(passed), unit="passed", aim=1.0, note=note)


def share(measure: Measure, found: Iterable[Measure]) -> float | None:
    """Returns the measure over what it is compared to; None if that is not known, or nothing."""
    base = _base(measure, found)
    return None if base is None else measure.value / base


def _base(measure: Measure, found: Iterable[Measure]) -> float | None:
    return next((other.value for other in found if other.name == measure.of and other.value), None)


def aim_of(measure: Measure, found: Iterable[Measure]) -> float | None:
    """Returns the bound of the measure's share on this card."""
    if measure.aim_if_fast is not None and (_base(measure, found) or 0.0) > FAST:
        return measure.aim_if_fast
    return measure.aim


def verdict(measure: Measure, found: list[Measure]) -> str:
    """Returns "yes", "no", or "" where there is no aim, or nothing to compare with."""
    reached = measure.value if measure.of is None else share(measure, found)
    aim = aim_of(measure, found)
    if aim is None or reached is None:
        return ""
    is_good = reached >= aim if measure.is_least else reached <= aim
    return "yes" if is_good else "no"


def beside_plain(measures: Iterable[Measure], label: str) -> list[Measure]:
    """Returns the rates of a variant over those of the same names without it."""
    return [
        Measure(name=f"{one.name}, {label}", value=one.value, unit=one.unit, of=one.name)
        for one in measures
        if one.unit == "tokens/s"
    ]


def to_json(result: PartResult) -> str:
    return json.dumps(asdict(result), indent=1)


def from_json(text: str) -> PartResult:
    fields = json.loads(text)
    measures = [Measure(**one) for one in fields.pop("measures")]
    return PartResult(measures=measures, **fields)


def write(results: list[PartResult], machine: dict[str, str], folder: Path) -> None:
    """Writes gpu.json and gpu.md."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "parts": [asdict(result) for result in results]}
    (folder / "gpu.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "gpu.md").write_text(markdown(results, machine), encoding="utf-8")


def markdown(results: list[PartResult], machine: dict[str, str]) -> str:
    found = [measure for result in results for measure in result.measures]
    lines = [", ".join(f"{name} {value}" for name, value in machine.items()), ""]
    lines += ["| part | measure | value | share of | aim | reached | note |", "|---" * 7 + "|"]
    for result in results:
        lines += [_row(result.name, measure, found) for measure in result.measures]
    lines += ["", *(_in_words(result) for result in results)]
    return "\n".join(lines) + "\n"


def _row(part: str, measure: Measure, found: list[Measure]) -> str:
    portion = share(measure, found)
    of = "" if measure.of is None else f"{_portion(portion)} of {measure.of}"
    bound = "≥" if measure.is_least else "≤"
    aim = aim_of(measure, found)
    aimed = "" if aim is None else f"{bound} {aim:g}"
    value = f"{measure.value:,.4g} {measure.unit}"
    cells = (part, measure.name, value, of, aimed, verdict(measure, found), measure.note)
    return f"| {' | '.join(cells)} |"


def _portion(portion: float | None) -> str:
    return "?" if portion is None else f"{portion:.3f}"


def _in_words(result: PartResult) -> str:
    end = f"not measured: {result.failure}" if result.failure else "measured"
    card = f"; {result.card}" if result.card else ""
    return f"- {result.name}: {end} ({result.seconds:.0f} s){card}"
