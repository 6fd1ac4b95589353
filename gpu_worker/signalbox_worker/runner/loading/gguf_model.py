"""A model in a GGUF file or its parts: its fields as a config.json, its tensors, floats or not."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.storage import StoredMatrix
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.blocks import held_as
from signalbox_worker.files.checkpoints.gguf.config import GGUFConfig
from signalbox_worker.files.checkpoints.gguf.factors import with_factors
from signalbox_worker.files.checkpoints.gguf.joins import Join
from signalbox_worker.files.checkpoints.gguf.names import Renamed
from signalbox_worker.files.checkpoints.gguf.reader import GGUFTensor, read_gguf
from signalbox_worker.files.checkpoints.gguf.sizes import gguf_sizes, is_runnable
from signalbox_worker.files.checkpoints.gguf.tokenizer import (
    DEFAULT_SPLIT,
    GGUFVocab,
    TokenType,
    adds_bos,
    build,
    distinct_tokens,
    text_of,
)
from signalbox_worker.files.checkpoints.gguf.weights import (
    dtype_of,
    read_blocks,
    read_rows,
    read_values,
)
from signalbox_worker.files.checkpoints.old_names import with_todays_names
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import distinct_tensors
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes
from signalbox_worker.files.hub.gguf_file_names import gguf_name
from signalbox_worker.models import has_native_program
from signalbox_worker.runner.loading.chat_templates import one_template

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PHI3 = re.compile(r"phi-?3", re.IGNORECASE)
_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Names in general.sampling, and in a generation_config.json, which converters make them of."""
_NAMED = ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
_OF_WORD_PIECE = {
    "bos_token_id": ("bos_token_id", "cls_token_id", 101),
    "eos_token_id": ("seperator_token_id", "eos_token_id", 102),
    "unknown_token_id": ("unknown_token_id", "", 100),
}
"""Fields of BERT's special tokens, and their ids in files without these, as in llama.cpp."""
_GATE_OF_SHARED = ".shared_expert_gate.weight"
_NO_TOKENS = {-1, (1 << 32) - 1}
"""-1, of either type."""
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


class GGUFSource:
    """Satisfies `ModelSource`."""

    directory: Path | None = None
    root: Path | None = None
    is_half = True  # quantised, or 16 bits; 32 are rare, and lose nothing that matters

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        self._path = path
        self.name = name or gguf_name(path.stem)
        self._content = read_gguf(path)
        self._config = GGUFConfig(self._content, path)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return self._config.config()

    @property
    def kind(self) -> str:
        """The architecture that the file names."""
        return self._config.fields.kind

    def log_choice(self) -> None:
        """Logs nothing: all of a file is served, or refused."""

    def files(self) -> list[Path]:
        return sorted({self._path, *(stored.path for stored in self._content.tensors.values())})

    @cached_property
    def sizes(self) -> WeightSizes:
        is_native = has_native_program([self._config.family.architecture])
        return gguf_sizes(self._stored(), is_native=is_native)

    def stored(self) -> dict[str, StoredTensor]:
        return self._by_name(self._stored())

    def further(self) -> dict[str, StoredTensor]:
        return self._by_name(self._stored(is_further=True))

    def _by_name(self, stored: Iterator[GGUFTensor]) -> dict[str, StoredTensor]:
        found = distinct_tensors(self._named(stored))
        return with_todays_names(found, [self._config.family.architecture])

    def _named(self, chosen: Iterator[GGUFTensor]) -> Iterator[tuple[str, str, StoredTensor]]:
        """Yields the checkpoint's tensors, each with its name there and one in the file."""
        family, tensors = self._config.family, {stored.name: stored for stored in chosen}
        taken = set[str]()
        for name, join, names in family.joined(tensors):
            taken |= {*names}
            parts = [tensors[part] for part in names]
            shape = join.shape_of({part.name: part.shape for part in parts})
            apart = {
                one.name: _stored_tensor(part, one)
                for part in parts
                for one in family.of_experts(part.name, part.shape)
            }
            read = partial(_joined, join, parts)
            yield name, names[0], StoredTensor(shape, read, parts=apart)
        for stored in tensors.values():
            if stored.name not in taken:
                for renamed in family.renamed(stored.name, stored.shape, self._num_heads):
                    yield renamed.name, stored.name, _stored_tensor(stored, renamed)

    def _stored(self, *, is_further: bool = False) -> Iterator[GGUFTensor]:
        tensors = with_factors(self._content.tensors, self._config.family.layer_names)
        is_taken = self._config.is_further if is_further else self._config.is_weight
        return (stored for stored in tensors if is_taken(stored.name))

    def _num_heads(self, part: str) -> int:
        name = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
        return int(self.config[name])

    def tokenizer_files(self) -> dict[str, bytes]:
        vocab = self._vocab
        config = {
            "add_bos_token": vocab.add_bos,
            "add_eos_token": vocab.add_eos,
            "bos_token": vocab.bos,
            "eos_token": vocab.eos,
            "unk_token": vocab.unk,
            "pad_token": self._token("padding_token_id", vocab.tokens),
            "chat_template": one_template(
                {
                    name: self._config.fields.get(f"tokenizer.chat_template{end}", None)
                    for name, end in (("default", ""), ("tool_use", ".tool_use"))
                }
            ),
        }
        kept = {key: value for key, value in config.items() if value is not None}
        return {
            "tokenizer.json": build(vocab).encode(),
            "tokenizer_config.json": json.dumps(kept, ensure_ascii=False, indent=1).encode(),
        }

    def eos_token_ids(self) -> tuple[int, ...]:
        fields = ("eos_token_id", "eot_token_id", "eom_token_id")
        ids = {token_id for name in fields if (token_id := self._id(name)) is not None}
        ids |= {*self._list("eos_token_ids", int)} - _NO_TOKENS
        typed = zip(self._vocab.tokens, self._vocab.token_types, strict=True)
        ids |= {
            index
            for index, (token, kind) in enumerate(typed)
            if kind == TokenType.CONTROL and text_of(token) in _END_OF_TURN
        }
        return tuple(sorted(ids))

    def generation_config(self) -> Mapping[str, Any]:
        return {
            name: self._config.fields.get(f"general.sampling.{key}", None)
            for key, name in _SAMPLING.items()
        }

    @cached_property
    def _vocab(self) -> GGUFVocab:
        tokens = self._list("tokens", str)
        if not tokens:
            raise ModelError(f"{self._path} has no tokenizer; fetch a file that has one")
        model, pre = str(self._of_tokenizer("model", "")), str(self._of_tokenizer("pre", ""))
        if model == "gpt2" and not pre:
            logger.warning(
                "%s does not say how its tokenizer cuts words (tokenizer.ggml.pre): llama.cpp's "
                "default is used, and answers may be worse; use a file that says it",
                self._path,
            )
        types = self._list("token_type", int) or [TokenType.NORMAL] * len(tokens)
        if len(types) != len(tokens):
            raise ModelError(f"{self._path} has {len(types)} token types for {len(tokens)} tokens")
        tokens = distinct_tokens(tokens, types, named=[self._id(name) for name in _NAMED])
        return GGUFVocab(
            model=model,
            pre=pre or DEFAULT_SPLIT,
            tokens=tokens,
            token_types=types,
            merges=self._list("merges", str),
            scores=self._list("scores", float),
            bos=self._special("bos_token_id", tokens, model),
            eos=self._special("eos_token_id", tokens, model),
            unk=self._special("unknown_token_id", tokens, model),
            lowercase=bool(self._of_tokenizer("normalizer.lowercase", True)),
            strip_accents=bool(self._of_tokenizer("normalizer.strip_accents", True)),
            add_bos=bool(self._of_tokenizer("add_bos_token", adds_bos(model=model, pre=pre))),
            add_eos=bool(self._of_tokenizer("add_eos_token", False)),
            add_space_prefix=bool(self._of_tokenizer("add_space_prefix", True)),
            strips_after_special=_PHI3.search(str(self._config.fields.get("general.name", "")))
            is not None,
        )

    def _special(self, field: str, tokens: list[str], model: str) -> str | None:
        """Returns a special token; of BERT's tokenizer, which names some by other fields."""
        if model != "bert":
            return self._token(field, tokens)
        first, second, usual = _OF_WORD_PIECE[field]
        known = (self._token(one, tokens) for one in (first, second) if one)
        return next((one for one in known if one), tokens[usual] if usual < len(tokens) else None)

    def _token(self, field: str, tokens: list[str]) -> str | None:
        token_id = self._id(field)
        if token_id is not None and not 0 <= token_id < len(tokens):
            raise ModelError(f"{self._path} has no token {token_id}, its {field}")
        return None if token_id is None else tokens[token_id]

    def _id(self, key: str) -> int | None:
        value = self._of_tokenizer(key, None)
        if isinstance(value, bool) or not isinstance(value, int | None):
            raise ModelError(f"{self._path} has {str(value)[:40]} for {key}, which is no token id")
        return None if value in _NO_TOKENS else value

    def _list(self, key: str, kind: type[T]) -> list[T]:
        values = self._of_tokenizer(key, [])
        if not isinstance(values, list) or not all(type(each) is kind for each in values):
            raise ModelError(
                f"{self._path} has no list of {kind.__name__} for tokenizer.ggml.{key}"
            )
        return values

    def _of_tokenizer(self, key: str, *default: Any) -> Any:
        return self._config.fields.get(f"tokenizer.ggml.{key}", *default)


def _stored_tensor(stored: GGUFTensor, renamed: Renamed) -> StoredTensor:
    blocks, of_rows = None, None
    if renamed.expert is not None:
        stored = stored.of_expert(renamed.expert)
    if renamed.is_vector:
        stored = replace(stored, shape=(prod(stored.shape),))
    if renamed.name.endswith(_GATE_OF_SHARED) and len(stored.shape) == 1:  # written without its row
        stored = replace(stored, shape=(1, *stored.shape))
    if is_runnable(stored) and (kind := held_as(stored.type)) is not None:
        rows = partial(read_blocks, stored) if renamed.keeps_values else None
        read = partial(_blocks, stored, renamed)
        blocks = StoredMatrix(kind, stored.shape, read, read_rows=rows)
    if renamed.keeps_values and len(stored.shape) > 1:
        of_rows = partial(read_rows, stored)
    return StoredTensor(
        stored.shape,
        partial(_values, stored, renamed),
        blocks,
        dtype=dtype_of(stored),
        read_rows=of_rows,
    )


def _values(stored: GGUFTensor, renamed: Renamed) -> AnyArray:
    return renamed.change(read_values(stored))


def _joined(join: Join, parts: list[GGUFTensor]) -> AnyArray:
    return join.make(*map(read_values, parts))


def _blocks(stored: GGUFTensor, renamed: Renamed) -> NDArray[np.uint8]:
    """[rows, bytes of a row]; rows of blocks are put in order as rows of floats are."""
    return renamed.change(read_blocks(stored, 0, stored.num_rows))
