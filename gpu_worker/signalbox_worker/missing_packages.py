"""The errors for packages of extras, without which a native worker does."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from signalbox_worker.config import ModelError

_OF_WORKER = ("torch", "transformers")


class MissingPackage(ModelError):
    """A package of an extra is not installed."""


def require(package: str, *, extra: str, why: str) -> None:
    """Raises ModelError that names the extra if a package is not installed.

    Args:
        why: begins the message, such as "attention_backend is 'triton'".
    """
    if find_spec(package) is None:
        raise _missing(package, extra=extra, why=why)


def has_pytorch() -> bool:
    """Returns whether PyTorch and transformers are installed."""
    return all(find_spec(package) is not None for package in _OF_WORKER)


def require_pytorch(why: str) -> None:
    """Raises ModelError that names the extra if PyTorch or transformers is not installed."""
    for package in _OF_WORKER:
        require(package, extra="worker", why=why)


def require_ray() -> None:
    """Raises ModelError that names the extra if Ray is not installed."""
    require("ray", extra="ray", why="--placement ray starts a worker on a Ray cluster")


@contextmanager
def needing_pytorch(why: str) -> Iterator[None]:
    """Raises ModelError that names the extra if PyTorch or transformers cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_WORKER:
            raise
        raise _missing(error.name, extra="worker", why=why) from error


def _missing(package: str, *, extra: str, why: str) -> MissingPackage:
    return MissingPackage(
        f"{why}, and {package} is not installed; pip install 'signalbox-serving[{extra}]'"
    )
