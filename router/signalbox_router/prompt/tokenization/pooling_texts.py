"""Reads what the files of a pooling model say of its inputs: prompts, templates, names of outputs.

A worker sends them with the tokenizer's files: sentence-transformers' and the model's config.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NOT_FOR_TEMPLATES = {"padding", "truncation", "max_length", "return_tensors", "restore_suffix"}
"""Settings beside a template's variables that sentence-transformers takes for itself."""


_COLBERT = "HF_ColBERT"
"""Architecture of ColBERT's own checkpoints, whose code marks each text and pads queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTemplate:
    """The prompt of a reranker that reads a query and a document in words of its own."""

    prefix: str
    """Text before the pair; control tokens in it are control tokens, as in `suffix`."""
    pair: str
    """Text with {instruction}, {query} and {document}, none of which becomes a control token."""
    suffix: str
    instruction: str
    """Instruction of a request that gives none."""


QWEN3_RERANKER = PairTemplate(
    prefix="<|im_start|>system\nJudge whether the Document meets the requirements based on the"
    ' Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n",
    pair="<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
"""The prompt that Qwen3's rerankers were trained with; decoders that answer yes or no take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingTexts:
    """Prompts of a pooling model, and the names of its outputs."""

    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that precede an input, by name."""
    default_prompt_name: str | None = None
    include_prompt: bool = True
    """True if a mean or maximum counts the tokens of the prompt."""
    do_lower_case: bool = False
    """True if texts are put in lower case before they are tokenised."""
    similarity: str = "cosine"
    """Function of two embeddings that scores are, as sentence-transformers names it."""
    has_unread_marks: bool = False
    """True if queries and documents have tokens of the model's own that are not added to them."""
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs; empty if they have none."""
    chat_variables: Mapping[str, Any] | None = None
    """Variables of the chat template, by which a reranker reads messages of the roles `query` and
    `document`; None if it does not."""
    template: PairTemplate | None = None
    """The template of a reranker that has none of its own; None joins a pair as the tokenizer
    does."""


def read_pooling_texts(files: Mapping[str, bytes]) -> PoolingTexts:
    """Reads the files by name; one that is missing says nothing. Raises ValueError."""
    settings = _read(files, "config_sentence_transformers.json")
    transformer = _read(files, "sentence_bert_config.json")
    config = _read(files, "config.json")
    pooling = _read(files, "pooling_config.json")
    modules = json.loads(files.get("modules.json") or b"[]")
    scores_tokens = any(str(one.get("type")).endswith(".LogitScore") for one in modules)
    is_decoder = str((config.get("architectures") or [""])[0]).endswith("ForCausalLM")
    has_modules = "modules.json" in files
    is_colberts = _COLBERT in (config.get("architectures") or ())
    return PoolingTexts(
        prompts={
            name: text
            for name, text in (_prefixes(settings) | (settings.get("prompts") or {})).items()
            if isinstance(text, str)
        },
        default_prompt_name=settings.get("default_prompt_name"),
        include_prompt=pooling.get("include_prompt", True) is not False,
        do_lower_case=transformer.get("do_lower_case") is True,
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
        has_unread_marks=is_colberts and not has_modules,
        labels=_labels(config),
        chat_variables=_chat_variables(transformer) if scores_tokens else None,
        template=QWEN3_RERANKER if is_decoder and not has_modules else None,
    )


def _read(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    content = json.loads(files.get(name) or b"{}")
    if not isinstance(content, dict):
        raise ValueError(f"{name} is not a JSON object")
    return content


def _prefixes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the prompts that PyLate's settings have by other names."""
    given = {name: settings.get(f"{name}_prefix") for name in ("query", "document")}
    return {name: text for name, text in given.items() if text is not None}


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of classes in the order of their numbers, which are keys as text."""
    names = config.get("id2label") or {}
    return tuple(str(names[number]) for number in sorted(names, key=int))


def _chat_variables(transformer: Mapping[str, Any]) -> dict[str, Any]:
    given = (transformer.get("processing_kwargs") or {}).get("chat_template") or {}
    return {name: value for name, value in given.items() if name not in _NOT_FOR_TEMPLATES}
