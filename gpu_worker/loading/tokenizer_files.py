"""The tokenizer's two files, whatever a model stores them as.

tokenizer.json is the `tokenizers` library's format. tokenizer_config.json holds the chat template
and the special tokens as plain strings. transformers is imported only for tokenizers that need its
conversion, since that takes seconds.
"""

import json
from pathlib import Path
from typing import Any

from gpu_worker.checkpoints.json_file import read_json
from gpu_worker.config import ModelError
from gpu_worker.loading.missing_packages import needing_pytorch

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_CONVERTIBLE = ("tokenizer.model", "vocab.json", "vocab.txt")


def directory_tokenizer_files(path: Path) -> dict[str, bytes]:
    """Reads, or converts, the tokenizer of a model directory."""
    if (path / "tokenizer.json").is_file():
        return {
            "tokenizer.json": (path / "tokenizer.json").read_bytes(),
            "tokenizer_config.json": _config_bytes(_directory_config(path)),
        }
    if has_tokenizer(path):
        return convert_tokenizer(str(path))
    raise ModelError(f"{path} has no tokenizer; add its tokenizer.json")


def has_tokenizer(path: Path) -> bool:
    """Says whether a model directory holds a tokenizer in a format that can be read."""
    return any((path / name).is_file() for name in ("tokenizer.json", *_CONVERTIBLE))


def _directory_config(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    config = dict(read_json(file)) if file.is_file() else {}
    template = path / "chat_template.jinja"
    if template.is_file():
        config["chat_template"] = template.read_text(encoding="utf-8")
    return config


def convert_tokenizer(directory: str, *, gguf_file: str | None = None) -> dict[str, bytes]:
    """Converts a tokenizer of another format through transformers."""
    with needing_pytorch(f"{directory} has no tokenizer.json, which transformers can make"):
        from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=gguf_file)
        content = tokenizer.backend_tokenizer.to_str()
    except Exception as error:  # whatever a converter meets, the remedy is the same
        lines = str(error).splitlines() or [type(error).__name__]
        raise ModelError(
            f"the tokenizer in {directory} cannot be converted ({lines[0]}); add tokenizer.json"
        ) from None
    config = {name: getattr(tokenizer, name, None) for name in _SPECIAL}
    for flag in ("add_bos_token", "add_eos_token"):
        config[flag] = bool(getattr(tokenizer, flag, False))
    config["chat_template"] = tokenizer.chat_template
    return {
        "tokenizer.json": content.encode(),
        "tokenizer_config.json": _config_bytes(config),
    }


def special_token(value: Any) -> str | None:
    """Special tokens are stored as text, or as an object around it. Raises TypeError."""
    text = value.get("content") if isinstance(value, dict) else value
    if value is None or isinstance(text, str):
        return text
    raise TypeError(f"{str(value)[:40]} is no token")


def token_id(tokenizer_json: bytes, token: str) -> int | None:
    """Returns the id of a special token; None if there is no such token."""
    try:
        content = json.loads(tokenizer_json)
        for added in content.get("added_tokens", []):
            if added["content"] == token:
                return int(added["id"])
        vocab = content["model"].get("vocab", {})
        return vocab.get(token) if isinstance(vocab, dict) else None
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError):
        raise ModelError("tokenizer.json describes no tokenizer; fetch it again") from None


def _config_bytes(config: dict[str, Any]) -> bytes:
    """Makes special tokens plain strings and the chat template one template. Raises ModelError."""
    plain = dict(config)
    try:
        for name in _SPECIAL:
            plain[name] = special_token(plain.get(name))
        template = plain.get("chat_template")
        if isinstance(template, list):  # several by name
            named = {entry["name"]: entry["template"] for entry in template}
            plain["chat_template"] = named.get("default")
        kept = {name: value for name, value in plain.items() if value is not None}
        return json.dumps(kept, ensure_ascii=False, indent=1, sort_keys=True).encode()
    except (KeyError, TypeError, UnicodeError) as error:
        raise ModelError(f"tokenizer_config.json is not sound ({error}); fetch it again") from None
