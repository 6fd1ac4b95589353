"""Builds a native program: one method adds one op, and the last one makes the program."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.arena import Packed
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.group import Group
from signalbox_kernels.native import Isa
from signalbox_kernels.op_parameters import (
    Adapted,
    CachedLayer,
    Clamped,
    Experts,
    HeadMatrices,
    LayerRotation,
    Norm,
    QueryKeyNorms,
    Routing,
    function_fields,
    rounding_fields,
)
from signalbox_kernels.program import Program, ProgramParts
from signalbox_kernels.recurrent import Convolution, GatedNorm, Scan, StateLayout
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
    Epilogue,
    GatedNormMode,
    Index,
    KeysAndValues,
    OpKind,
    Row,
    SbBuffer,
    SbOp,
    SbRouting,
)


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
        norm: Norm,
        *,
        of_rows: bool = False,
        to_floats: bool = False,
        sum_scale: float | None = None,
        for_adapters: bool = False,
        rounding: Rounding | None = None,
    ) -> None:
        """Adds a norm of every token, or only of the tokens with logits.

        Args:
            to_floats: writes a buffer of floats, which may be src.
            sum_scale: adds the result, of RMSNorm, to `dst`, a buffer of floats; factor of that
                sum. None writes the result.
            for_adapters: leaves it out for batches without adapters.
            rounding: what `dst` has of the result: the rounded elements, or the codes.
        """
        width = len(norm.weight)
        self._add(
            OpKind.NORM,
            mode=(CENTRED if norm.is_centred else 0)
            | (OF_ROWS if of_rows else 0)
            | (TO_FLOATS if to_floats else 0)
            | (0 if sum_scale is None else TO_FLOATS | TO_SUM)
            | (0 if norm.is_normed else UNNORMED),
            src=src,
            dst=dst,
            n=0 if width == self.shape.hidden_size else width,
            weight=self.arena.keep_floats(norm.weight),
            bias=self.arena.keep_floats(norm.bias),
            eps=norm.eps,
            adapter=int(for_adapters),
            **(rounding_fields(rounding) if sum_scale is None else {"scale": sum_scale}),
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
            weight=self.arena.keep_floats(weight),
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
        struct = SbRouting(*routing, *map(self.arena.keep_floats, (bias, scales)))
        self._add(OpKind.ROUTE, src=src, weight=self.arena.keep_struct(struct))

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
            weight=None if order is None else self.arena.keep_order(order),
            adapter=int(for_adapters),
            **rounding_fields(rounding),
        )

    def multiply(self, rows: int, gate: int, *, column: int) -> None:
        """Adds a product of rows of elements, which it replaces, with the sigmoid of columns of a
        buffer of floats.

        Args:
            column: the first of as many columns as rows have, a multiple of 16.
        """
        width = self.buffers[rows].width
        self._add(OpKind.CODE, mode=2, src=rows, dst=rows, n=width, gate=gate, column=column)

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
        added = {} if adapted is None else self._shrink(adapted)
        interleaved = epilogue is Epilogue.GATED
        packed, heads = self._pack(weight, interleaved=interleaved)
        self._add(
            OpKind.LINEAR,
            mode=epilogue,
            src=src,
            dst=dst,
            n=packed.num_rows,
            weight=packed.address,
            bias=None if bias is None else self.arena.keep_bias(bias, interleaved=interleaved),
            storage=packed.type,
            column=column,
            gate=gate,
            **function_fields(activation),
            **added,
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

    def _shrink(self, adapted: Adapted) -> dict[str, int]:
        """Adds the product with A of each row's adapter, which batches without adapters skip;
        returns the fields of the op that adds to it what B makes of that."""
        self.sites.append(adapted.site)
        number, parts = len(self.sites), self.arena.keep(adapted.site.parts)
        self._add(OpKind.SHRINK, src=adapted.src, dst=adapted.shrunk, adapter=number)
        return {"adapter": number, "shrunk": adapted.shrunk, "parts": parts}

    def rotate(
        self,
        src: int,
        dst: int,
        layer: CachedLayer,
        rotation: LayerRotation,
        *,
        norms: QueryKeyNorms | None = None,
        keys_and_values: KeysAndValues = KeysAndValues.PLAIN,
    ) -> None:
        """Adds an op that normalises if `norms` are given, rotates, and writes K and V to the
        cache.

        Args:
            keys_and_values: what else is done, or not done, with K and V.
        """
        table, scales, num_rotated = rotation.table, rotation.query_scales, rotation.num_rotated
        norm = {}
        if norms is not None:
            query, key = self.arena.keep_floats(norms.query), self.arena.keep_floats(norms.key)
            norm = {"norm_q": query, "norm_k": key, "eps": norms.eps}
        self._add(
            OpKind.ROTATE,
            mode=rotation.pairs,
            src=src,
            dst=dst,
            n=(layer.heads or self.shape).head_size if num_rotated is None else num_rotated,
            weight=None if table is None else self.arena.keep(table),
            keys_and_values=keys_and_values,
            bias=None if scales is None else self.arena.keep(scales),
            **norm,
            **layer.fields,
        )

    def attend(
        self,
        src: int,
        dst: int,
        layer: CachedLayer,
        *,
        window: int | None = None,
        is_causal: bool = True,
        cap: float | None = None,
        sinks: AnyArray | None = None,
        biases: AnyArray | None = None,
    ) -> None:
        """Adds attention over the cache.

        Args:
            window: a token sees those less than so many positions away; None sees all.
            is_causal: False if it sees later tokens, too; a step then has whole sequences.
            sinks: [num_heads], scores beside those of the tokens, without values.
            cap: scores become cap * tanh(score / cap).
            biases: [num_heads, 2 * num_positions - 1], added to the scores of keys from
                num_positions - 1 places before a query to as many behind it; goes without a cap.
        """
        places = {}
        if biases is not None:
            assert cap is None, "of no model"
            padded = np.pad(to_float32(biases), ((0, 0), (0, PANEL - 1)))
            places = {"weight": self.arena.keep(padded), "n": (biases.shape[1] + 1) // 2}
        self._add(
            OpKind.ATTEND,
            mode=int(not is_causal),
            src=src,
            dst=dst,
            window=window or 0,
            bias=self.arena.keep_floats(sinks),
            cap=cap or 0.0,
            **places,
            **layer.fields,
        )

    def keep(self, src: int) -> None:
        """Adds an op that keeps rows of a buffer of floats, which the ops with states read, where
        their run leaves no state; a step that settles them has the rows there again."""
        self._add(OpKind.KEEP, src=src)

    def convolve(self, src: int, dst: int, how: Convolution, layout: StateLayout) -> None:
        """Adds a convolution of columns of a buffer of floats along each sequence."""
        self._add(OpKind.CONVOLVE, src=src, dst=dst, weight=how.keep(self.arena, layout))

    def scan(self, src: int, gates: int, dst: int, how: Scan, layout: StateLayout) -> None:
        """Adds a scan; all are buffers of floats."""
        weight = how.keep(self.arena, layout)
        self._add(OpKind.SCAN, src=src, gate=gates, dst=dst, weight=weight)

    def gated_norm(
        self,
        src: int,
        gate: int,
        dst: int,
        how: GatedNorm,
        squares: tuple[int, int] | None = None,
    ) -> None:
        """Adds RMSNorm and a gate of a buffer of floats, which is written, too.

        Args:
            squares: a shared buffer with a column for each group of columns, and one of floats, if
                all of the program's group have as many columns of each; `how` is gated first then.
        """
        fields = how.fields(self.arena)
        if squares is not None:
            assert how.is_gated_first, "of no model"
            shared, sums = squares
            product = {"mode": GatedNormMode.GATED_SQUARES, **how.columns}
            self._add(OpKind.GATED_NORM, src=src, gate=gate, dst=shared, **product)
            self.sum(shared, sums, adds=False)
            gate, fields = sums, fields | {"mode": GatedNormMode.NORMED_BY_SQUARES, "column": 0}
        self._add(OpKind.GATED_NORM, src=src, gate=gate, dst=dst, **fields)

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
