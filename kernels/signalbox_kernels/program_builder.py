"""Builds a native program: one method adds one op, and the last one makes the program."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.adapters import AdapterSite
from signalbox_kernels.arena import Packed
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.group import Group
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program, ProgramParts
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Matrix
from signalbox_kernels.structs import (
    ADDED,
    CENTRED,
    MIX_ADDED,
    MIX_COMMON,
    OF_ROWS,
    PANEL,
    TO_FLOATS,
    TO_SUM,
    UNNORMED,
    Activation,
    Element,
    Epilogue,
    Index,
    KeysAndValues,
    OpKind,
    OpRounding,
    Pairs,
    Row,
    SbBuffer,
    SbOp,
    SbRouting,
    Scores,
)

_HALF = PANEL // 2


def _rounding_fields(rounding: Rounding | None) -> dict[str, Any]:
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


class Routing(NamedTuple):
    """How the experts of a token are chosen, as SbRouting of csrc/program/api.h."""

    num_experts: int
    num_chosen: int
    function: Scores = Scores.SOFTMAX
    renormalises: bool = False
    num_groups: int = 1
    num_chosen_groups: int = 1
    num_summed: int = 2
    """Experts of a group whose shares decide whether it counts."""
    has_common: bool = False
    scale: float = 1.0


class Heads(NamedTuple):
    """Heads of a layer that has others than the program's shape.

    Its K and V lie at a layer of the shape, and perhaps in the room of the layers behind it.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int


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


def _padded_order(order: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns it with the padding of rows, which stays where it is."""
    width = len(order)
    padding = np.arange(width, -(-width // PANEL) * PANEL)
    return np.concatenate([order, padding]).astype(np.int32)


class ProgramBuilder(ProgramParts):
    """Adds ops to the parts of a program; weights are packed into `arena` as they come."""

    __slots__ = ()

    def buffer(self, width: int, *, row: Row = Row.ELEMENTS, copies: int = 0) -> int:
        """Declares a buffer of `width` columns.

        Args:
            copies: experts of each token, of which each has its own row; 0 is one row for all.
        """
        self.buffers.append(SbBuffer(width, row, copies))
        return len(self.buffers) - 1

    def embed(
        self,
        dst: int,
        table: Packed,
        *,
        index: Index = Index.TOKEN_IDS,
        adds: bool = False,
        first_token: int = 0,
        scale: float = 1.0,
    ) -> None:
        """Adds an op that turns tokens to rows of a packed matrix, which may also be the head; a
        token that the matrix lacks becomes zeros.

        Args:
            index: what of a token is looked up.
            adds: adds the rows to what is there.
            first_token: index of the matrix's first row.
            scale: factor of the rows.
        """
        self._add(
            OpKind.EMBED,
            mode=index | (ADDED if adds else 0),
            dst=dst,
            n=table.num_rows,
            weight=table.address,
            storage=table.type,
            first_token=first_token,
            scale=scale,
        )

    def norm(
        self,
        src: int,
        dst: int,
        weight: AnyArray,
        bias: AnyArray | None = None,
        *,
        eps: float,
        width: int | None = None,
        is_centred: bool = False,
        of_rows: bool = False,
        to_floats: bool = False,
        to_sum: bool = False,
        scale: float = 1.0,
        is_normed: bool = True,
        for_adapters: bool = False,
        rounding: Rounding | None = None,
    ) -> None:
        """Adds RMSNorm of every token, or only of the tokens with logits.

        Args:
            width: columns of `src`, of RMSNorm; None is the hidden size.
            is_centred: makes it LayerNorm, which alone has a bias and no `to_sum`.
            to_floats: writes a buffer of floats, which may be src.
            to_sum: adds the result to `dst`, a buffer of floats.
            scale: factor of that sum.
            is_normed: False multiplies with the weight alone.
            rounding: what `dst` has of the result: the rounded elements, or the codes.
            for_adapters: leaves it out for batches without adapters.
        """
        self._add(
            OpKind.NORM,
            mode=(CENTRED if is_centred else 0)
            | (OF_ROWS if of_rows else 0)
            | (TO_FLOATS if to_floats else 0)
            | (TO_FLOATS | TO_SUM if to_sum else 0)
            | (0 if is_normed else UNNORMED),
            src=src,
            dst=dst,
            n=width or 0,
            weight=self._floats(weight),
            bias=None if bias is None else self._floats(bias),
            eps=eps,
            adapter=int(for_adapters),
            **({"scale": scale} if to_sum else _rounding_fields(rounding)),
        )

    def norm_columns(
        self,
        buffer: int,
        weight: AnyArray,
        *,
        column: int,
        eps: float,
        num_runs: int = 1,
        added_to: int | None = None,
    ) -> None:
        """Adds RMSNorm of runs of columns in a buffer of floats, each a multiple of 16; the results
        replace them.

        Args:
            column: the first of them; one run lies behind the other.
            added_to: buffer of floats, as wide, to which the results are added instead.
        """
        self._add(
            OpKind.NORM,
            mode=0 if added_to is None else TO_FLOATS | TO_SUM,
            src=buffer,
            dst=buffer if added_to is None else added_to,
            n=len(weight),
            column=column,
            eps=eps,
            weight=self._floats(weight),
            scale=1.0,
            group=num_runs,
        )

    def route(
        self,
        src: int,
        routing: Routing,
        bias: AnyArray | None = None,
        scales: AnyArray | None = None,
    ) -> None:
        """Adds the choice of each token's experts by their scores, for what follows.

        Args:
            scales: of each expert, a factor of its share.
        """
        vectors = {"bias": bias, "scales": scales}
        addresses = {name: self._floats(v) for name, v in vectors.items() if v is not None}
        struct = SbRouting(*routing, **addresses)
        kept = self.arena.keep(np.frombuffer(bytes(struct), dtype=np.uint8))
        self._add(OpKind.ROUTE, src=src, weight=kept)

    def gather(self, src: int, dst: int) -> None:
        """Adds a copy of each token's row for each of its experts, sorted by expert."""
        self._add(OpKind.GATHER, src=src, dst=dst)

    def mix(self, src: int, dst: int, *, adds: bool, common: int | None = None) -> None:
        """Adds the sum of the experts' rows, in floats, times their shares.

        Args:
            adds: adds the sum to what is in `dst`.
            common: buffer of floats with the rows of an expert of all tokens.
        """
        mode = (MIX_ADDED if adds else 0) | (0 if common is None else MIX_COMMON)
        self._add(OpKind.MIX, mode=mode, src=src, dst=dst, gate=common or 0)

    def code(
        self,
        src: int,
        dst: int,
        order: NDArray[np.int32] | None = None,
        rounding: Rounding | None = None,
        *,
        for_adapters: bool = False,
    ) -> None:
        """Adds an op that turns elements or floats to the codes that products with quantised
        weights read, or to elements, with the columns in another order or rounded.

        Args:
            for_adapters: as `norm` takes it.
        """
        self._add(
            OpKind.CODE,
            mode=int(self.buffers[src].row == Row.FLOATS),
            src=src,
            dst=dst,
            weight=None if order is None else self.arena.keep(_padded_order(order)),
            adapter=int(for_adapters),
            **_rounding_fields(rounding),
        )

    def linear(
        self,
        src: int,
        dst: int,
        weight: Matrix | Experts | HeadMatrices,
        bias: AnyArray | None,
        epilogue: Epilogue,
        *,
        activation: Activation | Clamped = Activation.SILU,
        column: int = 0,
        gate: int = 0,
        adapted: Adapted | None = None,
    ) -> None:
        """Adds a product; for GATED the weight is [gate; up].

        Args:
            src: a buffer of elements, or of codes for a quantised weight.
            weight: of each expert for gathered rows; of each head for STORE and ACTIVATE alone.
            bias: [rows], or [experts, rows].
            activation: of GATED, GATE, ACTIVATE and MODULATE.
            column: first column of dst for STORE, which writes whole panels: what comes behind this
                matrix is stored later, and dst is wide enough for the last one's padding.
            gate: buffer of floats: GATE multiplies the function of it by the product, MODULATE the
                function of the product by its columns from `column` on.
            adapted: what adapters may add to it.
        """
        if adapted is not None:
            self._shrink(adapted)
        interleaved = epilogue is Epilogue.GATED
        packed, heads = self._pack(weight, interleaved=interleaved)
        if isinstance(activation, Clamped):
            function = {"activation": Activation.CLAMPED, **activation._asdict()}
        else:
            function = {"activation": activation}
        self._add(
            OpKind.LINEAR,
            mode=epilogue,
            src=src,
            dst=dst,
            n=packed.num_rows,
            weight=packed.address,
            bias=None if bias is None else self._bias(bias, interleaved=interleaved),
            storage=packed.type,
            column=column,
            gate=gate,
            **function,
            **({} if adapted is None else self._adapter_fields(adapted)),
            **heads,
        )

    def _pack(
        self, weight: Matrix | Experts | HeadMatrices, *, interleaved: bool
    ) -> tuple[Packed, dict[str, int]]:
        """Packs what a product reads; returns it with the op's fields of matrices of heads."""
        if isinstance(weight, Experts):
            every = chain([weight.first], weight.others)
            return self.arena.pack_all(every, weight.num_experts, interleaved=interleaved), {}
        if isinstance(weight, HeadMatrices):
            matrices, src_step, dst_step = weight
            steps = {"num_matrices": len(matrices), "src_step": src_step, "dst_step": dst_step}
            return self.arena.pack_all(matrices, len(matrices)), steps
        return self.arena.pack(weight, interleaved=interleaved), {}

    def _shrink(self, adapted: Adapted) -> None:
        """Adds the product with A of each row's adapter, which batches without adapters skip."""
        self.sites.append(adapted.site)
        number = len(self.sites)
        self._add(OpKind.SHRINK, src=adapted.src, dst=adapted.shrunk, adapter=number)

    def _adapter_fields(self, adapted: Adapted) -> dict[str, int]:
        parts = self.arena.keep(adapted.site.parts)
        return {"adapter": len(self.sites), "shrunk": adapted.shrunk, "parts": parts}

    def rotate(
        self,
        src: int,
        dst: int,
        *,
        layer: int,
        norms: tuple[AnyArray, AnyArray] | None = None,
        eps: float = 0.0,
        kv_scales: tuple[float, float] = (1.0, 1.0),
        rotary: NDArray[np.float32] | None = None,
        num_rotated: int | None = None,
        pairs: Pairs = Pairs.HALVES,
        heads: Heads | None = None,
        keys_and_values: KeysAndValues = KeysAndValues.PLAIN,
        query_scales: NDArray[np.float32] | None = None,
    ) -> None:
        """Adds an op that normalises if `norms` are given, rotates, and writes K and V to the
        cache.

        Args:
            kv_scales: of K and V in E4M3: values are codes times these.
            rotary: as `build` takes it, of layers that have another one.
            num_rotated: first elements of each head that rotate, an even number; None is all.
            pairs: elements of these that are turned together.
            heads: those of the layer; None is those of the shape.
            keys_and_values: what else is done, or not done, with K and V.
            query_scales: [positions], factors of rotated queries.
        """
        query, key = (None, None) if norms is None else map(self._floats, norms)
        scales = dict(zip(("k_scale", "v_scale"), kv_scales, strict=True))
        norm = {"norm_q": query, "norm_k": key, "eps": eps}
        table = None if rotary is None else self.arena.keep(rotary)
        self._add(
            OpKind.ROTATE,
            mode=pairs,
            src=src,
            dst=dst,
            layer=layer,
            n=(heads or self.shape).head_size if num_rotated is None else num_rotated,
            weight=table,
            keys_and_values=keys_and_values,
            **({} if heads is None else heads._asdict()),
            bias=None if query_scales is None else self.arena.keep(query_scales),
            **norm,
            **scales,
        )

    def attend(
        self,
        src: int,
        dst: int,
        *,
        layer: int,
        window: int | None = None,
        is_causal: bool = True,
        cap: float | None = None,
        kv_scales: tuple[float, float] = (1.0, 1.0),
        sinks: AnyArray | None = None,
        heads: Heads | None = None,
    ) -> None:
        """Adds attention over the cache; `rotate` explains the scales and the heads.

        Args:
            window: a token sees those less than so many positions away; None sees all.
            is_causal: False if it sees later tokens, too; a step then has whole sequences.
            sinks: [num_heads], scores beside those of the tokens, without values.
            cap: scores become cap * tanh(score / cap).
        """
        scales = dict(zip(("k_scale", "v_scale"), kv_scales, strict=True))
        self._add(
            OpKind.ATTEND,
            mode=int(not is_causal),
            src=src,
            dst=dst,
            layer=layer,
            window=window or 0,
            bias=None if sinks is None else self._floats(sinks),
            cap=cap or 0.0,
            **({} if heads is None else heads._asdict()),
            **scales,
        )

    def head(
        self, src: int, weight: Packed, *, first_token: int = 0, cap: float | None = None
    ) -> None:
        """Adds the product with the head. Of several shards, each has as many tokens as the first,
        but the last one, which has the rest.

        Args:
            first_token: that of the matrix's first row.
            cap: logits become cap * tanh(logit / cap).
        """
        self._add(
            OpKind.HEAD,
            src=src,
            n=weight.num_rows,
            weight=weight.address,
            storage=weight.type,
            first_token=first_token,
            cap=cap or 0.0,
        )

    def sum(self, src: int, dst: int, *, adds: bool) -> None:
        """Adds an op that sums what all of the group have written to a shared buffer, in the
        group's order.

        Args:
            dst: a buffer of floats, as wide.
            adds: adds the sum to what is there.
        """
        mode = Epilogue.ADD if adds else Epilogue.STORE
        self._add(OpKind.SUM, mode=mode, src=src, dst=dst)

    def _add(self, kind: OpKind, **fields: object) -> None:
        self.ops.append(SbOp(kind=kind, **fields))

    def _floats(self, vector: AnyArray) -> int:
        """Keeps a vector as float32, padded as rows are; returns its address."""
        return self.arena.keep(np.pad(to_float32(vector), (0, -len(vector) % PANEL)))

    def _bias(self, bias: AnyArray, *, interleaved: bool) -> int:
        """Keeps a bias, or that of each expert, as the columns of packed weights lie."""
        parts, size = (2, _HALF) if interleaved else (1, PANEL)
        halves = to_float32(bias).reshape(-1, parts, bias.shape[-1] // parts)
        padded = np.pad(halves, ((0, 0), (0, 0), (0, -halves.shape[2] % size)))
        return self.arena.keep(padded.reshape(len(halves), parts, -1, size).swapaxes(1, 2))

    def build(
        self,
        rotary: NDArray[np.float32],
        *,
        num_threads: int,
        isa: Isa | None = None,
        group: Group | None = None,
    ) -> Program:
        """Finishes the program.

        Args:
            rotary: [positions, 2, num_rotated / 2] float32, cosines and sines.
            group: what sums are over; None has no sums.
        """
        return Program(self, rotary, num_threads=num_threads, isa=isa, group=group)
