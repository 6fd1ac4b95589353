"""Counts what a model's weights take in memory, from the heads of its files.

Also detects broken files. Does not import PyTorch, so that a model that cannot be served is refused
before any process is started.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from signalbox_kernels.storage import GROUP, Storage
from signalbox_worker.files.checkpoints.coded_matrices import keeps_codes
from signalbox_worker.files.checkpoints.quantised_matrices import with_matrices
from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors, unreadable
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint

_FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OWN_TYPES = "its own types"
"""Form of weights that float32 computes with as they are stored."""
_INT8_BYTES, _INT4_BYTES = (kind.block_bytes / GROUP for kind in (Storage.Q8_0, Storage.Q4_1))
"""Bytes of a value."""
_TABLES = ("token_embd", "output", "embed_tokens", "lm_head")
"""The table of embeddings and the head, which keep 8 bits under "int4"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSizes:
    """Counts over all tensors of a model."""

    num_values: int
    num_table_values: int
    """Values in the table of embeddings and in the head."""
    stored_bytes: int
    is_half: bool
    """True if 16 bits are enough to hold each weight."""
    is_native: bool
    """True for a family of models that native programs are for."""
    block_type: str = ""
    """Commonest type of the matrices in blocks that native programs run, such as "Q4_1"."""
    held_type: str = ""
    """Type in which native programs hold these values; empty if they are held as they are."""
    quantised_form: str = ""
    """Name of the form of a checkpoint's quantised matrices, such as "fp8"; empty for floats."""
    keeps_codes: bool = False
    """True if native programs compute with the codes of that form."""
    activations: str = ""
    """Types of the codes that the checkpoint rounds activations to, such as "int8"; empty for
    none."""
    leaves_activations: bool = False
    """True if the checkpoint also prescribes schemes that no program computes."""
    num_left_out: int = 0
    """Tensors of the files that are no part of the model as it is served."""

    @property
    def has_blocks(self) -> bool:
        """True if at least one matrix is stored in blocks that native programs run."""
        return bool(self.block_type)

    def bytes_in(self, form: str) -> int:
        """Returns what the weights take at least.

        Args:
            form: a dtype, "gguf", int8, int4, fp8, the checkpoint's own form, or OWN_TYPES.
        """
        match form:
            case "its own types" if self.quantised_form:
                return 4 * self.num_values  # decoded
            case "gguf" | "its own types" | self.quantised_form:
                return self.stored_bytes
            case "fp8":
                return self.num_values + self.num_table_values
            case "int8":
                return int(self.num_values * _INT8_BYTES)
            case "int4":
                num_others = self.num_values - self.num_table_values
                return int(self.num_table_values * _INT8_BYTES + num_others * _INT4_BYTES)
        return self.num_values * _FLOAT_BYTES[form]


def directory_sizes(
    shards: Iterable[Path],
    *,
    is_half: bool,
    is_native: bool,
    checkpoint: QuantisedCheckpoint | None = None,
    choose: Callable[[Mapping[str, StoredTensor]], Mapping[str, StoredTensor]] = dict,
) -> WeightSizes:
    """Counts tensors of a checkpoint's files. Raises ModelError for a file that is broken.

    Args:
        checkpoint: forms of quantised matrices, of which the values are counted, not the codes.
        choose: returns the tensors that are served; a file of PyTorch's is counted whole.
    """
    values: dict[str, int] = {}
    stored: dict[str, StoredTensor] = {}
    stored_bytes = 0
    for shard in shards:
        size = shard.stat().st_size
        stored_bytes += size
        if shard.suffix == ".safetensors":
            stored |= stored_safetensors(shard)
        elif size:
            values[shard.name] = size // (2 if is_half else 4)
        else:
            raise unreadable(shard, "it is empty")
    matrices = with_matrices(stored, checkpoint)
    chosen = choose(matrices) if matrices else {}
    values |= {name: prod(one.shape) for name, one in chosen.items()}
    stored_bytes -= sum(map(_bytes_of, matrices.values())) - sum(map(_bytes_of, chosen.values()))
    return WeightSizes(
        num_values=sum(values.values()),
        num_table_values=num_table_values(values),
        stored_bytes=stored_bytes,
        is_half=is_half,
        is_native=is_native,
        quantised_form="" if checkpoint is None else checkpoint.name,
        keeps_codes=checkpoint is not None and keeps_codes(checkpoint),
        activations=_activations(checkpoint),
        leaves_activations=checkpoint is not None and checkpoint.leaves_activations,
        num_left_out=len(matrices) - len(chosen),
    )


def _bytes_of(tensor: StoredTensor) -> int:
    if tensor.parts:
        return sum(map(_bytes_of, tensor.parts.values()))
    return prod(tensor.shape) * (tensor.dtype.itemsize if tensor.dtype is not None else 0)


def _activations(checkpoint: QuantisedCheckpoint | None) -> str:
    schemes = () if checkpoint is None else checkpoint.activations
    return " and ".join(dict.fromkeys(scheme.code.name.lower() for scheme in schemes))


def num_table_values(values: dict[str, int]) -> int:
    """Returns the number of values in the table of embeddings and in the head.

    Args:
        values: number of each tensor's values, by its name.
    """
    modules = {name: name.rpartition(".")[0] for name in values}
    return sum(values[name] for name, one in modules.items() if one.rpartition(".")[2] in _TABLES)
