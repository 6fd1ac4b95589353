"""Names of files of weights in Hugging Face's layout, and which of several count.

The order is that of transformers. Where it finds nothing, files count whose names it does not know,
as in vLLM.
"""

from collections.abc import Collection
from fnmatch import fnmatch

INDEX = ".index.json"
"""End of the name of a file that says in which file each tensor is."""
SAFETENSORS, TORCH_FILES = "*.safetensors", "pytorch_model*.bin"
DUPLICATES = ("consolidated*", "original/*", "onnx/*")
"""The same weights again, in other layouts."""
_KNOWN = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)


def choose_weight_files(files: Collection[str]) -> list[str]:
    """Returns the files of a folder that count, in order, or their index alone; empty if there are
    none."""
    if known := next((name for name in _KNOWN if name in files), None):
        return [known]
    for pattern in (SAFETENSORS, TORCH_FILES):
        if matching := sorted(file for file in files if fnmatch(file, pattern)):
            return matching
    return []


def left_out(files: Collection[str]) -> list[str]:
    """Returns the files of a folder, and indexes of them, that do not count beside others."""
    chosen = choose_weight_files(files)
    known = [name for name in _KNOWN if name in files and name not in chosen]
    return [*known, *sorted(file for file in files if chosen and file.endswith(".gguf"))]


def names_of_index(content: object) -> list[str]:
    """Returns the files that an index names. Raises ValueError for one that is not sound."""
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()):
        raise ValueError("it does not say where the tensors are")
    return sorted({*places.values()})
