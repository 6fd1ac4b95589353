"""Replaces the tensors that GPT-OSS's checkpoints have of all experts of a layer by each one's.

In floats a stack is [num_experts, columns, rows]; in MXFP4 its codes and scales are those of
[num_experts, rows, columns]. Rows of gate and up come in turn.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from signalbox_kernels.floats import AnyArray
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import check_shape
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.runner.native.weight_shapes import (
    EXPERTS,
    ROUTER,
    ROUTER_BIAS,
    layer_prefix,
    weight_shapes,
)

Read = Callable[[str], Mapping[str, AnyArray]]
"""Returns the parts of a tensor by the ends of their names; of one without its values by ""."""
_ROUTER = {"router.weight": ROUTER, "router.bias": ROUTER_BIAS}


def without_transposed_stacks(
    stored: Mapping[str, StoredTensor], config: DecoderConfig
) -> dict[str, StoredTensor]:
    """Returns the tensors with those of all experts replaced by each one's, of which one stack and
    one of biases at a time are in memory. Raises ModelError for one of another shape."""
    found = dict(stored)
    if not isinstance(config, MoeConfig) or not config.has_transposed_stacks:
        return found

    def read(name: str) -> Mapping[str, AnyArray]:
        return stored[name].read_parts() or {"": stored[name].read()}

    of_weights, of_biases = lru_cache(maxsize=1)(read), lru_cache(maxsize=1)(read)
    names = config.names
    for index in range(config.num_layers):
        block = f"{layer_prefix(index)}{config.block}."
        for theirs, ours in _ROUTER.items():
            if (tensor := found.pop(f"{block}{theirs}", None)) is not None:
                found[f"{block}{ours}"] = tensor
        place = f"{block}{EXPERTS}."
        for stack, parts in (("gate_up_proj", names[:2]), ("down_proj", names[2:])):
            for end, kind, source in (
                ("", "weight", of_weights),
                (".weight", "weight", of_weights),
                ("_bias", "bias", of_biases),
            ):
                if (tensor := found.pop(f"{place}{stack}{end}", None)) is not None:
                    whole = _Stack(f"{place}{stack}{end}", tensor, source)
                    found |= whole.of_experts(config, place, [f"{part}.{kind}" for part in parts])
    return found


@dataclass(frozen=True, slots=True)
class _Stack:
    """A tensor of all experts."""

    name: str
    tensor: StoredTensor
    read: Read

    def of_experts(
        self, config: MoeConfig, place: str, names: list[str]
    ) -> Iterator[tuple[str, StoredTensor]]:
        """Yields the tensors of each expert.

        Args:
            place: what their names begin with.
            names: of those whose rows come in turn.
        """
        if self.tensor.form is None and self.tensor.parts:  # of a GGUF file
            yield from ((f"{place}{name}", part) for name, part in self.tensor.parts.items())
            return
        shape = weight_shapes(config)[f"{place}0.{names[0]}"]
        rows, columns = shape[0] * len(names), shape[1:]
        is_transposed = self.tensor.form is None
        expected = (*columns, rows) if is_transposed else (rows, *columns)
        check_shape(self.name, self.tensor.shape, (config.num_experts, *expected))
        for number, name in enumerate(names):
            taken = slice(number, None, len(names))
            for expert in range(config.num_experts):
                yield f"{place}{expert}.{name}", self._of_expert(shape, expert, taken)

    def _of_expert(self, shape: tuple[int, ...], expert: int, rows: slice) -> StoredTensor:
        form, whole = self.tensor.form, self.tensor
        if form is None:
            values = partial(self._rows, "", expert, rows)
            return StoredTensor(shape, values, dtype=whole.dtype)
        parts = {
            end: StoredTensor((shape[0], *part.shape[2:]), partial(self._rows, end, expert, rows))
            for end, part in whole.parts.items()
        }
        return StoredTensor(shape, partial(_decoded, form, parts), parts=parts, form=form)

    def _rows(self, end: str, expert: int, rows: slice) -> AnyArray:
        """Returns rows of an expert, which come last in a matrix of floats."""
        values = self.read(self.name)[end][expert]
        taken: AnyArray = (values if end else values.T)[rows]
        return taken


def _decoded(form: QuantisedForm, parts: Mapping[str, StoredTensor]) -> AnyArray:
    return form.decode({end: part.read() for end, part in parts.items()})
