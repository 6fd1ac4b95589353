"""A model on the hub as files here, before its weights are fetched: heads of files, then holes.

What opens a model reads shapes and fields from there and looks at no values. A hole takes no space
on the disk.
"""

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from signalbox_contract.startup import ignore_progress
from signalbox_rpc.lifetime.private_folder import PrivateFolder
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints import safetensors_file
from signalbox_worker.files.checkpoints.safetensors_file import MAX_HEADER_BYTES
from signalbox_worker.files.hub.download import speaking_of
from signalbox_worker.files.hub.hub_model import HubModel

HeadLength = Callable[[bytes], int | None]
"""Returns the length of a file's head, of which the first bytes are given; None if unknown."""

_FIRST_BYTES = 1 << 16
_GROWTH = 4
_MAX_CONNECTIONS = 4


@contextmanager
def without_weights(model: HubModel) -> Iterator[Path]:
    """Yields the folder of a model without files of weights, or its first GGUF file with holes."""
    if model.gguf is not None:
        with with_holes(model) as path:
            yield path
        return
    with speaking_of(model.repository, model.revision):
        folder = model.fetch_texts(ignore_progress)
    yield folder


@contextmanager
def with_holes(model: HubModel) -> Iterator[Path]:
    """Yields the folder of a model, or its first GGUF file, with a hole for the bytes of tensors.

    A hole is also what a file in PyTorch's own format is, whose tensors nothing tells of.
    """
    private = PrivateFolder("heads")
    folder = private.path / model.name
    try:
        with speaking_of(model.repository, model.revision):
            _lay_out(model, folder)
        yield folder if model.gguf is None else folder / model.gguf
    except ModelError as error:
        raise ModelError(str(error).replace(f"{folder}", model.repository)) from None
    finally:
        private.close()


def _lay_out(model: HubModel, folder: Path) -> None:
    if model.gguf is None:
        shutil.copytree(model.fetch_texts(ignore_progress), folder, copy_function=_link)
    with ThreadPoolExecutor(_MAX_CONNECTIONS, "heads") as pool:
        for _ in pool.map(partial(_add_file, model, folder), model.weight_files().items()):
            pass


def _link(file: str, link: str) -> None:
    """Makes a link in place of a copy."""
    Path(link).symlink_to(Path(file).resolve())


def _add_file(model: HubModel, folder: Path, file: tuple[str, int]) -> None:
    name, size = file
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as written:
        written.write(_read_head(model, name, size))
        written.truncate(size)


def _read_head(model: HubModel, file: str, size: int) -> bytes:
    length_of = _length_of(file)
    if length_of is None or not size:
        return b""
    head, most = b"", min(size, _FIRST_BYTES)
    while len(head) < most:
        head += model.read_start(file, most - len(head), skipped=len(head))
        if len(head) < most:
            raise ModelError(f"{file} ends early on the hub; try again")
        length = length_of(head)
        most = min(size, len(head) * _GROWTH if length is None else length)
        if most > MAX_HEADER_BYTES:
            raise ModelError(f"the head of {file} has more than {MAX_HEADER_BYTES} bytes")
    return head


def _length_of(file: str) -> HeadLength | None:
    if file.endswith(".safetensors"):
        return safetensors_file.head_length
    if not file.endswith(".gguf"):
        return None
    from signalbox_worker.files.checkpoints.gguf.reader import head_length

    return head_length
