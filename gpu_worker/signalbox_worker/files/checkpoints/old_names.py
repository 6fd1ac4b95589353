"""Tensors of checkpoints by the names that models here take.

Those of code beside the weights get transformers' names of today, as its `conversion_mapping.py`
has them; those of DistilBERT and MPNet get BERT's.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from signalbox_kernels.floats import AnyArray
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import distinct_tensors

_OLD = {
    "DistilBert": {
        "transformer.layer": "encoder.layer",
        "attention.q_lin": "attention.self.query",
        "attention.k_lin": "attention.self.key",
        "attention.v_lin": "attention.self.value",
        "attention.out_lin": "attention.output.dense",
        "sa_layer_norm": "attention.output.LayerNorm",
        "ffn.lin1": "intermediate.dense",
        "ffn.lin2": "output.dense",
        "output_layer_norm": "output.LayerNorm",
    },
    "MPNet": {
        "attention.attn.q": "attention.self.query",
        "attention.attn.k": "attention.self.key",
        "attention.attn.v": "attention.self.value",
        "attention.attn.o": "attention.output.dense",
        "attention.LayerNorm": "attention.output.LayerNorm",
    },
    "NomicBert": {
        "encoder.layers": "layers",
        "emb_ln": "embeddings.LayerNorm",
        "attn.out_proj": "self_attn.o_proj",
        "fc11": "up_proj",
        "fc12": "gate_proj",
        "fc2": "down_proj",
        "norm1": "post_attention_layernorm",
        "norm2": "post_mlp_layernorm",
    },
}
"""Parts of names by the family, with which its architectures begin."""
_FUSED = {"attn.Wqkv": tuple(f"self_attn.{part}_proj" for part in "qkv")}
"""Matrices that hold those of several names, one after another."""


def with_todays_names(
    stored: Mapping[str, StoredTensor], architectures: Sequence[str]
) -> dict[str, StoredTensor]:
    """Returns the tensors, of a family whose names have changed by those of today."""
    family = next((one for one in _OLD if "".join(architectures[:1]).startswith(one)), None)
    if family is None:
        return dict(stored)
    renamed = (
        (own, name, part)
        for name, tensor in stored.items()
        for own, part in _split(_today(name, family), tensor)
    )
    return distinct_tensors(renamed)


def _today(name: str, family: str) -> str:
    for old, own in _OLD[family].items():
        name = name.replace(old, own)
    return name


def _split(name: str, tensor: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    for fused, parts in _FUSED.items():
        if fused in name:
            count = tensor.shape[0] // len(parts)
            if count * len(parts) != tensor.shape[0]:
                raise ModelError(f"{name} has {tensor.shape[0]} rows, not {len(parts)} equal parts")
            for index, part in enumerate(parts):
                read = partial(_rows, tensor, index * count, count)
                shape = (count, *tensor.shape[1:])
                yield name.replace(fused, part), StoredTensor(shape, read, dtype=tensor.dtype)
            return
    yield name, tensor


def _rows(tensor: StoredTensor, first: int, count: int) -> AnyArray:
    return tensor.read()[first : first + count]
