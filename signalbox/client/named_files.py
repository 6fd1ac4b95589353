"""Files that a command line names: errors in one line, with the flag, the path and the reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UnusableFile(ValueError):
    """A file cannot be read or written."""


@contextmanager
def reading(path: str | Path, flag: str = "") -> Iterator[None]:
    """Raises UnusableFile for errors of a block that reads a file as UTF-8 text or as bytes.

    Args:
        flag: the flag that names the file; "" for a positional argument.
    """
    with _naming("read", path, flag):
        yield


@contextmanager
def writing(path: str | Path | None, flag: str = "") -> Iterator[None]:
    """Raises UnusableFile for errors of a block that writes a file; None is standard output."""
    if path is None:
        yield
        return
    with _naming("write", path, flag):
        yield


@contextmanager
def _naming(verb: str, path: str | Path, flag: str) -> Iterator[None]:
    reason = "it is not UTF-8"
    try:
        yield
        return
    except UnicodeDecodeError:
        pass
    except OSError as error:
        reason = error.strerror or str(error)
    raise UnusableFile(f"cannot {verb} {f'{flag} {path}'.lstrip()}: {reason}")
