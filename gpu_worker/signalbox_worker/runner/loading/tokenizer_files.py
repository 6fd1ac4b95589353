"""The tokenizer's two files, whatever a model stores them as.

tokenizer.json is the `tokenizers` library's format. tokenizer_config.json holds the chat template
and the special tokens as plain strings. transformers is imported only for tokenizers that need its
conversion, since that takes seconds: those without tokenizer.json, and those whose other files
have tokens that it lacks.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.json_file import read_json
from signalbox_worker.missing_packages import needing_pytorch
from signalbox_worker.runner.loading.chat_templates import one_template, templates_of_files
from signalbox_worker.runner.loading.special_tokens import (
    differing_step,
    differing_token,
    misleading_flags,
    plain_tokens,
    with_special_tokens_map,
)

logger = logging.getLogger(__name__)

TOKENIZER = "tokenizer.json"
_CONVERTIBLE = (
    *("tokenizer.model", "sentencepiece.bpe.model", "spiece.model", "tiktoken.model"),
    *("tekken.json", "vocab.json", "vocab.txt"),
)
_NO_TOKENIZER = "tokenizer.json describes no tokenizer; fetch it again"


def directory_tokenizer_files(path: Path) -> dict[str, bytes]:
    """Reads, or converts, the tokenizer of a model directory."""
    if not has_tokenizer(path):
        raise no_tokenizer(path)
    config = _directory_config(path)
    if not (path / TOKENIZER).is_file():
        return _converted(
            path, config, f"{path} has no tokenizer.json, which transformers can make"
        )
    content = (path / TOKENIZER).read_bytes()
    tokenizer = _parsed(content)
    if others := _files_of_versions(path, config):
        return _converted(
            path, config, f"{path} has {others[0]}, which transformers chooses by its release"
        )
    with _sound_config():
        flags = tuple(misleading_flags(tokenizer, config))
        differing = differing_token(tokenizer, config, _optional(path / "added_tokens.json"))
        contradicted = differing_step(tokenizer, config)
    for flag in flags:
        logger.warning(
            "%s is %s in tokenizer_config.json, and tokenizer.json does otherwise: as in "
            "transformers, the latter counts; change its post_processor if it is wrong",
            flag,
            json.dumps(config[flag]),
        )
    if differing is not None:
        why = f"{path / TOKENIZER} lacks {differing!r} as other files have it"
        files = _converted(path, config, f"{why}, which transformers merges")
        _tell_replaced_steps(content, files[TOKENIZER])
        return files
    if contradicted is not None:
        why = f"{path} has {contradicted} in tokenizer_config.json, and not so in {TOKENIZER}"
        return _converted(path, config, f"{why}, which transformers resolves")
    return {TOKENIZER: content, "tokenizer_config.json": _config_bytes(config)}


def no_tokenizer(path: Path) -> ModelError:
    return ModelError(f"{path} has no tokenizer; add its tokenizer.json")


def has_tokenizer(path: Path) -> bool:
    """Says whether a model directory holds a tokenizer in a format that can be read."""
    return any((path / name).is_file() for name in (TOKENIZER, *_CONVERTIBLE))


def token_id(tokenizer_json: bytes, token: str) -> int | None:
    """Returns the id of a special token; None if there is no such token."""
    content = _parsed(tokenizer_json)
    try:
        for added in content.get("added_tokens") or []:
            if added["content"] == token:
                return int(added["id"])
        vocab = content["model"].get("vocab", {})
        if isinstance(vocab, list):  # of pieces and their scores
            vocab = {piece: index for index, (piece, _) in enumerate(vocab)}
        return None if (found := vocab.get(token)) is None else int(found)
    except (ValueError, LookupError, AttributeError, TypeError):
        raise ModelError(_NO_TOKENIZER) from None


def _parsed(tokenizer_json: bytes) -> dict[str, Any]:
    try:
        content = json.loads(tokenizer_json)
    except (ValueError, RecursionError):
        raise ModelError(_NO_TOKENIZER) from None
    if not isinstance(content, dict) or "model" not in content:
        raise ModelError(_NO_TOKENIZER)
    return content


def _files_of_versions(path: Path, config: Mapping[str, Any]) -> list[str]:
    """Returns the files that replace tokenizer.json for some versions of transformers."""
    names = config.get("fast_tokenizer_files") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"{path}: fast_tokenizer_files lists no files; fetch it again")
    return [name for name in names if name != TOKENIZER and (path / name).is_file()]


def _optional(file: Path) -> Mapping[str, Any]:
    return read_json(file) if file.is_file() else {}


def _directory_config(path: Path) -> dict[str, Any]:
    config = with_special_tokens_map(
        _optional(path / "tokenizer_config.json"), _optional(path / "special_tokens_map.json")
    )
    if templates := templates_of_files(path):
        config["chat_template"] = templates
    return config


def _converted(path: Path, config: Mapping[str, Any], why: str) -> dict[str, bytes]:
    """Returns the tokenizer as transformers loads it; `why` begins the message if it cannot."""
    with needing_pytorch(why):
        from transformers import AutoTokenizer

    logger.info("converting the tokenizer: %s", why)
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        content = _saved(tokenizer.backend_tokenizer)
    except Exception as error:  # whatever a converter meets, the remedy is the same
        lines = [*str(error).split("\n"), type(error).__name__]
        if not (path / TOKENIZER).is_file() and find_spec("sentencepiece") is None:
            lines.insert(0, "if it is SentencePiece's, pip install sentencepiece")
        raise ModelError(
            f"the tokenizer in {path} cannot be converted ({next(filter(None, lines))}); "
            "add a tokenizer.json with all of its tokens"
        ) from None
    # The tokens are in tokenizer.json now, with ids that may be others than the old files'.
    kept = {name: value for name, value in config.items() if name != "added_tokens_decoder"}
    flags = {
        flag: bool(getattr(tokenizer, flag, False)) for flag in ("add_bos_token", "add_eos_token")
    }
    named = dict.fromkeys(tokenizer.SPECIAL_TOKENS_ATTRIBUTES) | tokenizer.special_tokens_map
    return {
        TOKENIZER: content,
        "tokenizer_config.json": _config_bytes(kept | flags | named),
    }


def _saved(backend: Any) -> bytes:
    """Returns tokenizer.json of a tokenizer whose special tokens stay special.

    It leaves out of texts also what was special once and was then added again as another token.
    """
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["special"] |= not backend.decode([token["id"]], skip_special_tokens=True)
    return json.dumps(content, ensure_ascii=False).encode()


def _tell_replaced_steps(stored: bytes, converted: bytes) -> None:
    """Warns of steps that transformers' class of the tokenizer does not take from its file."""
    before, after = (
        json.loads(Backend.from_buffer(content).to_str()) for content in (stored, converted)
    )
    for step in ("normalizer", "pre_tokenizer", "decoder"):
        if before[step] != after[step]:
            logger.warning(
                "transformers replaces the %s of tokenizer.json, so some texts get other tokens; "
                "tokenizer_class PreTrainedTokenizerFast in tokenizer_config.json keeps it",
                step,
            )


def _config_bytes(config: Mapping[str, Any]) -> bytes:
    """Makes special tokens plain strings and the chat template one template. Raises ModelError."""
    with _sound_config():
        plain = plain_tokens(config)
        plain["chat_template"] = one_template(plain.get("chat_template"))
        kept = {name: value for name, value in plain.items() if value is not None}
        return json.dumps(kept, ensure_ascii=False, indent=1, sort_keys=True).encode()


@contextmanager
def _sound_config() -> Iterator[None]:
    """Makes an error of the fields within it a ModelError."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, UnicodeError) as error:
        raise ModelError(f"tokenizer_config.json is not sound ({error}); fetch it again") from None
