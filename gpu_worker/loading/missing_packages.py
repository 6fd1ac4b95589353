"""The error for packages of the extra `worker`, which a native worker does without."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpu_worker.config import ModelError

_OF_EXTRA = {"torch", "transformers"}


@contextmanager
def needing_pytorch(why: str) -> Iterator[None]:
    """Makes an import of PyTorch or transformers that fails a ModelError with the remedy.

    Args:
        why: begins the message, such as "it runs through PyTorch".
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _OF_EXTRA:
            raise
        raise ModelError(
            f"{why}, and {error.name} is not installed; pip install 'signalbox-serving[worker]'"
        ) from error
