"""Parameters of the ops of a native program, beside the buffers that they read and write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.adapters import AdapterSite
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import Activation, Element, OpRounding, Pairs, ScoreFunction


class Routing(NamedTuple):
    """Choice of the experts of a token, as SbRouting of csrc/program/api.h."""

    num_experts: int
    num_chosen: int
    function: ScoreFunction = ScoreFunction.SOFTMAX
    renormalises: bool = False
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_summed: int = 2
    """Experts of a group whose shares decide whether it counts."""
    has_common: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """RMSNorm, or LayerNorm."""

    weight: AnyArray
    """[columns of a row]."""
    bias: AnyArray | None = None
    """[columns of a row]; LayerNorm alone has one."""
    eps: float
    is_centred: bool = False
    """True makes it LayerNorm, whose rows are as wide as the hidden states."""
    is_normed: bool = True
    """False multiplies with the weight alone."""


class QueryKeyNorms(NamedTuple):
    """RMSNorms of each head of Q and of K."""

    query: AnyArray
    key: AnyArray
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRotation:
    """Rotation of a layer's Q and K."""

    table: NDArray[np.float32] | None = None
    """Cosines and sines as `ProgramBuilder.build` takes them; None is the program's."""
    num_rotated: int | None = None
    """First elements of each head that rotate, an even number; None is all."""
    pairs: Pairs = Pairs.HALVES
    """Elements of these that are turned together."""
    query_scales: NDArray[np.float32] | None = None
    """[positions], factors of rotated queries."""


class Heads(NamedTuple):
    """Heads of a layer that has others than the program's shape.

    Its K and V lie at a layer of the shape, and perhaps in the room of the layers behind it.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int


class CachedLayer(NamedTuple):
    """A layer's K and V in the cache."""

    number: int
    """First layer of the program's shape that has them."""
    heads: Heads | None = None
    """None is those of the program's shape."""
    k_scale: float = 1.0
    """Factor of K in E4M3: values are codes times it."""
    v_scale: float = 1.0
    group: int = 0
    """Group of layers in whose blocks they are."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an op that reads or writes the cache."""
        heads = {} if self.heads is None else self.heads._asdict()
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return {"layer": self.number, "cache_group": self.group, **heads, **scales}


class Experts(NamedTuple):
    """A matrix of each expert, all of one shape and type, read one by one."""

    first: Matrix
    others: Iterable[Matrix]
    num_experts: int


class Clamped(NamedTuple):
    """SB_CLAMPED of csrc/program/api.h: products with gate and up, within limits."""

    scale: float
    """Factor within the sigmoid."""
    limit: float


class HeadMatrices(NamedTuple):
    """A matrix of each head, all of one shape and type, whose rows are a multiple of `PANEL`."""

    matrices: Sequence[Matrix]
    src_step: int
    """Columns of the source that each head reads, one head after the other; 0 lets all read all."""
    dst_step: int
    """Columns from the first that a head writes to that of the next."""


class Adapted(NamedTuple):
    """The terms that adapters may add to a product."""

    site: AdapterSite
    src: int
    """Buffer of the elements that the product reads, whatever it reads itself."""
    shrunk: int
    """Buffer for the products with A, as wide as all parts of the largest r."""


def rounding_fields(rounding: Rounding | None) -> dict[str, Any]:
    """Returns the fields of an op that rounds what it writes."""
    if rounding is None:
        return {}
    if rounding.code is Element.FP8_E4M3:
        kind = OpRounding.E4M3
    else:
        kind = OpRounding.INT8 if rounding.is_symmetric else OpRounding.INT8_WITH_ZERO
    return {
        "rounding": kind,
        "group": rounding.group_size or 0,
        "scale": rounding.scale or 0.0,
        "zero": rounding.zero_point,
    }


def function_fields(activation: Activation | Clamped) -> dict[str, Any]:
    """Returns the fields of the function of a product."""
    if isinstance(activation, Clamped):
        return {"activation": Activation.CLAMPED, **activation._asdict()}
    return {"activation": activation}
