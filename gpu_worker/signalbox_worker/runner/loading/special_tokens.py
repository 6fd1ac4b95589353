"""Special and added tokens that stand in other files than tokenizer.json.

transformers merges them into the tokenizer as it loads it: those of tokenizer_config.json, and, if
that has no `added_tokens_decoder`, those of special_tokens_map.json and added_tokens.json. What is
decided here is whether merging changes the tokenizer; where it may, transformers does it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import AddedToken

_DECODER = "added_tokens_decoder"
_EXTRA = ("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens")
"""Lists of special tokens, or dictionaries by name."""
_OF_THE_FILE_ALONE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that take all steps from tokenizer.json."""
_NOT_IN_ADDED_TOKEN = ("id", "__type")


def with_special_tokens_map(
    config: Mapping[str, Any], special_tokens_map: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns tokenizer_config.json's fields with those of special_tokens_map.json."""
    if _DECODER in config:
        return dict(config)
    merged = {**config, **special_tokens_map}
    for name in _EXTRA:
        lists = [one[name] for one in (config, special_tokens_map) if name in one]
        if lists and all(isinstance(one, list) for one in lists):
            merged[name] = [token for one in lists for token in one]
    return merged


def differing_token(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any], added: Mapping[str, Any]
) -> str | None:
    """Returns a token of the other files that tokenizer.json lacks or treats otherwise, or None.

    Raises LookupError, TypeError or AttributeError for fields that describe no tokens.

    Args:
        tokenizer: the fields of tokenizer.json.
        config: those of tokenizer_config.json, with special_tokens_map.json.
        added: ids by token, of added_tokens.json.
    """
    known = {one["content"]: one for one in tokenizer.get("added_tokens") or []}
    for token in (config.get(_DECODER) or {}).values():
        content = token["content"]
        if content not in known or _flags(token) != _flags(known[content]):
            return str(content)
    if _DECODER not in config:
        for content, token_id in added.items():
            if content not in known or known[content]["id"] != token_id:
                return content
    for content in _special_tokens(config):
        if not known.get(content, {}).get("special"):
            return content
    return None


def differing_step(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Returns a field of tokenizer_config.json that tokenizer.json contradicts, or None.

    transformers' classes take it, and put their own step in the place of the file's.
    """
    if config.get("tokenizer_class") in _OF_THE_FILE_ALONE:
        return None
    for step in (*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))):
        for name, value in _said_by(step).items():
            if isinstance(given := config.get(name), bool) and given is not value:
                return name
    return None


def _steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yields a step, or those that it is a sequence of."""
    nested = (step or {}).get("normalizers") or (step or {}).get("pretokenizers")
    if nested:
        for one in nested:
            yield from _steps(one)
    elif step:
        yield step


def _said_by(step: Mapping[str, Any]) -> dict[str, bool]:
    """Returns the fields of tokenizer_config.json that a step has another name for."""
    match step["type"]:
        case "BertNormalizer":
            lowercase, strips = bool(step.get("lowercase")), step.get("strip_accents")
            return {
                "do_lower_case": lowercase,
                "strip_accents": lowercase if strips is None else strips,
                "tokenize_chinese_chars": bool(step.get("handle_chinese_chars")),
            }
        case "ByteLevel":
            return {"add_prefix_space": bool(step.get("add_prefix_space"))}
        case "Metaspace":
            return {"add_prefix_space": step.get("prepend_scheme") != "never"}
        case "Prepend":
            return {"add_prefix_space": True}
    return {}


def plain_tokens(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields with each token as its text. Raises KeyError or TypeError."""
    plain = {
        name: _text(value) if _is_token(name, value) else value for name, value in config.items()
    }
    for name in _EXTRA:
        if isinstance(tokens := plain.get(name), list):
            plain[name] = [_text(token) for token in tokens]
        elif isinstance(tokens, dict):
            plain[name] = {key: _text(token) for key, token in tokens.items()}
    return plain


def misleading_flags(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the flags that say otherwise than tokenizer.json whether a text gets a token.

    transformers reads them only for tokenizers without tokenizer.json.
    """
    written = json.dumps(tokenizer.get("post_processor"))
    for name in ("bos_token", "eos_token"):
        flag, token = config.get(f"add_{name}"), _text(config.get(name))
        is_written = token is not None and json.dumps(token) in written
        if isinstance(flag, bool) and flag != is_written:
            yield f"add_{name}"


def _special_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    values = [value for name, value in config.items() if _is_token(name, value)]
    for name in _EXTRA:
        tokens = config.get(name) or ()
        values += tokens.values() if isinstance(tokens, dict) else tokens
    yield from filter(None, map(_text, values))


def _is_token(name: str, value: Any) -> bool:
    """Says whether a field holds a token: "eos_token" does, and "add_bos_token" is a flag."""
    return name.endswith("_token") and not isinstance(value, bool)


def _text(value: Any) -> str | None:
    """Returns a token that is stored as text, or as an object around it."""
    text = value["content"] if isinstance(value, dict) else value
    if text is None or isinstance(text, str):
        return text
    raise TypeError(f"{str(value)[:40]} is no token")


def _flags(token: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns how a token is matched, with the library's defaults."""
    fields = {name: value for name, value in token.items() if name not in _NOT_IN_ADDED_TOKEN}
    state: Mapping[str, Any] = AddedToken(**fields).__getstate__()
    return state
