"""Draws a run: throughput over time, and the distributions of latencies."""

from pathlib import Path
from typing import Any

from signalbox.bench.measurements import Measured, tokens_by_time
from signalbox.bench.report import LATENCIES

NUM_BINS = 60


class NoMatplotlib(RuntimeError):
    """The picture cannot be drawn; the message says what to install."""


def check(path: str) -> None:
    """Raises NoMatplotlib or ValueError before a run whose picture could not be drawn."""
    formats = _pyplot().gcf().canvas.get_supported_filetypes()
    if Path(path).suffix[1:] not in formats:
        raise ValueError(f"--plot is {path!r}; name a file that ends in .png, .svg or .pdf")
    if not Path(path).absolute().parent.is_dir():
        raise ValueError(f"--plot is {path!r}; its folder does not exist")


def draw(measured: Measured, title: str, path: Path) -> None:
    """Writes the picture in the format of the name's suffix. Raises OSError or ValueError."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    figure.suptitle(title)
    _throughput(axes.flat[0], measured)
    for axis, (name, of) in zip(axes.flat[1:], LATENCIES.values(), strict=True):
        _shares(axis, name, [value * 1e3 for value in getattr(measured, of)])
    try:
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)


def _throughput(axis: Any, measured: Measured) -> None:
    if rates := tokens_by_time(measured, num_bins=NUM_BINS):
        first, last = measured.arrivals[0].at_s, max(one.at_s for one in measured.arrivals)
        axis.stairs(rates, [i * (last - first) / NUM_BINS for i in range(NUM_BINS + 1)])
    axis.set(title="throughput", xlabel="seconds from the first token", ylabel="output tokens/s")
    axis.set_ylim(bottom=0)


def _shares(axis: Any, name: str, values_ms: list[float]) -> None:
    """Draws the cumulative distribution: the share of values up to each duration."""
    axis.set(title=name, xlabel="milliseconds", ylabel="share", ylim=(0, 1))
    if values_ms:
        axis.ecdf(values_ms)
        axis.grid(alpha=0.3)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib(
            "--plot needs matplotlib: pip install signalbox-serving[bench]"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
