"""Any causal language model of transformers, on our paged cache.

The model's own code runs on packed tokens, [1, num_tokens], with attention replaced (see
`attention.py`). The head is whatever the model does after its base model, so scaled
and capped logits need no knowledge of ours. The idea of a backend of models that are not ours is
vLLM's.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from signalbox_contract.startup import ReportProgress
from signalbox_kernels.torch.linear import PackedWeight, pack_weight
from signalbox_kernels.torch.tensors import as_tensor
from signalbox_worker.config import ModelError
from signalbox_worker.device.division import undivided
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import check_names
from signalbox_worker.models.layers import (
    ForwardContext,
    Model,
    ParallelGroup,
    Placement,
    WeightTarget,
)
from signalbox_worker.models.transformers.attention import (
    IMPLEMENTATION,
    CallRecorder,
    PagedStep,
    answering,
    register,
)
from signalbox_worker.models.transformers.config import TransformersConfig, prepared
from signalbox_worker.models.transformers.longrope import pin_longrope
from signalbox_worker.models.transformers.text_model import names_of_text

logger = logging.getLogger(__name__)

_BODIES = ("decoder", "language_model", "model")
"""Places of a body in what a class calls its base model, which may be itself."""


class TransformersModel(Model):
    """A model in its own code, with the attention of a worker."""

    loads_itself = True

    def __init__(
        self,
        config: TransformersConfig,
        max_model_len: int,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        if group.size > 1:
            raise undivided(
                f"{config.architecture} runs through transformers, which is not divided"
            )
        self._config = config
        self._max_model_len = max_model_len
        self._placement = placement
        self._model: Any = None
        self._body: Any = None
        """The part of the model that its head follows."""

    def load(self, directory: Path, progress: ReportProgress) -> None:
        """Loads the checkpoint as transformers does, which knows the names of older ones."""
        names = names_of_text(directory) if self._config.is_part else None
        self._load(directory, key_mapping=names)

    def load_tensors(self, stored: Mapping[str, StoredTensor]) -> bool:
        unknown = self._load(None, state_dict={name: _Unread(one) for name, one in stored.items()})
        check_names(sorted(unknown), missing=set())
        return True

    def _load(self, directory: Path | None, **options: Any) -> set[str]:
        """Loads weights; returns the names of those that the model does not take."""
        from transformers.utils.logging import disable_progress_bar

        register()
        disable_progress_bar()  # type: ignore[no-untyped-call]
        logger.info("loading %s through transformers", self._config.architecture)
        try:
            self._model, info = self._config.model_class.from_pretrained(
                directory,
                config=self._config.hf_config,
                dtype=self._placement.dtype,
                attn_implementation=IMPLEMENTATION,
                output_loading_info=True,
                **options,
                **_decoding(self._config.hf_config),
            )
        except Exception as error:  # safetensors and each conversion raise their own
            line = (str(error).splitlines() or [type(error).__name__])[0]
            where = directory or "the file"
            raise ModelError(f"{where} cannot be loaded ({line}); fetch it again") from None
        _refuse_incomplete(info)
        prepared(self._model.to(self._placement.device))
        pin_longrope(self._model, self._max_model_len)
        return set(info["unexpected_keys"])

    def weight_targets(self) -> dict[str, WeightTarget]:
        return {}

    def ignores(self, name: str) -> bool:
        return False

    def finish(self) -> None:
        """Packs the plain matrices; refuses a model whose tokens meet outside of attention."""
        try:
            self._body = _find_body(self._model)
        except Exception as error:  # whatever the model's code meets, it cannot be served
            reason = f"it does not run on packed tokens ({error})"
            raise _unsupported(self._config, reason) from None
        if self._body is None:
            raise _unsupported(self._config, "its head cannot be told apart from its layers")
        if _mixes_tokens(self._model, self._body, self._config.vocab_size):
            raise _unsupported(
                self._config,
                "its tokens depend on each other outside of attention (recurrent state, "
                "convolution), or it ignores position_ids",
            )
        embeddings = self._model.get_input_embeddings().weight
        for parent in list(self._model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear and child.weight is not embeddings:
                    setattr(parent, name, _PackedLinear(child))

    def forward(self, token_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        step = PagedStep(self._config.layers, context.attention, self._placement.dtype)
        with answering(step):
            return _hidden(self._body, token_ids, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """Runs what the model does after its base model."""
        return _head(self._model, self._body, _Given(hidden))[:, : self._config.vocab_size]


class _Unread:
    """A tensor that transformers reads when it is its turn, as it does those of safetensors."""

    def __init__(self, stored: StoredTensor) -> None:
        self._stored = stored
        self.shape = self._stored.shape

    def __getitem__(self, _: Any) -> Tensor:
        return as_tensor(self._stored.read())


class _PackedLinear(nn.Module):
    """A linear layer in the device's own layout."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.weight = torch.empty(0, dtype=linear.weight.dtype, device=linear.weight.device)
        """Empty; it is there because some models read its dtype."""
        self._packed: PackedWeight = pack_weight(linear.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        rows = self._packed.apply(x.reshape(-1, x.shape[-1]), self.bias)
        return rows.view(*x.shape[:-1], self.out_features)


class _Output(tuple[Tensor]):
    """Output of a body for a head: hidden states, and None for every other name."""

    def __new__(cls, hidden: Tensor) -> "_Output":
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, _: str) -> None:
        return None


class _Given:
    """Stands in for a body's forward pass: returns hidden states that were computed before."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden
        self.was_called = False

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.was_called = True
        return _Output(self.hidden[None])


def _hidden(body: Any, token_ids: Tensor, positions: Tensor) -> Tensor:
    """[num_tokens] each, to [num_tokens, hidden_size]."""
    out = body(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
    hidden: Tensor = out[0][0]
    return hidden


def _head(model: Any, body: Any, given: _Given) -> Tensor:
    """Returns the model's logits for a body's result: [num_tokens, size of the vocabulary]."""
    ids = torch.zeros(1, given.hidden.shape[0], dtype=torch.long, device=given.hidden.device)
    previous = body.forward
    body.forward = given
    try:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    finally:
        body.forward = previous
    return logits


def _find_body(model: Any) -> Any:
    """Returns the module whose result becomes logits; None if it is not in a known place."""
    base = model.base_model
    ids = torch.zeros(1, dtype=torch.long, device=model.device)
    for body in (base, *(getattr(base, name, None) for name in _BODIES)):
        if body is None or body is model:
            continue
        with answering(CallRecorder()):
            given = _Given(_hidden(body, ids, ids))
            _head(model, body, given)
        if given.was_called:
            return body
    return None


def _mixes_tokens(model: Any, body: Any, vocab_size: int) -> bool:
    """Runs a token at one position behind different tokens, with attention cut off.

    What a token becomes must not depend on its neighbours: recurrent states and convolutions have
    no place in a KV cache. Nor may it depend on its place in the batch.
    """
    ids = torch.tensor([5, 9, 5, 7, 5], device=model.device) % vocab_size
    recorder = CallRecorder()
    with answering(recorder):
        hidden = _hidden(body, ids, torch.full_like(ids, 3))
    for states in [hidden, *(s[0].transpose(0, 1).flatten(1) for s in recorder.inputs)]:
        first, last = states[0].float(), states[4].float()
        if not torch.allclose(first, last, rtol=0.05, atol=0.02 * float(first.abs().max())):
            return True
    return False


def _unsupported(config: TransformersConfig, reason: str) -> ModelError:
    return ModelError(
        f"architecture not supported: {config.architecture}: {reason}, so it cannot run through "
        "transformers either; docs/reference/models.md lists what is served"
    )


def _decoding(hf_config: Any) -> dict[str, Any]:
    """Returns the arguments that make transformers decode the experts of GPT-OSS, whatever kernels
    for MXFP4 it finds."""
    from transformers.utils.quantization_config import Mxfp4Config

    described = getattr(hf_config, "quantization_config", None) or {}
    if described.get("quant_method") != "mxfp4":
        return {}
    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _refuse_incomplete(info: Mapping[str, Any]) -> None:
    missing = info["missing_keys"]
    if missing:
        raise ModelError(
            f"weights are missing, such as {min(missing)!r} ({len(missing)} in all); the model is"
            " incomplete, fetch it again"
        )
    if info["mismatched_keys"]:
        raise ModelError(
            f"weight {min(map(str, info['mismatched_keys']))} has an unexpected shape; "
            "config.json does not belong to these weights"
        )
