"""A model's tokenizer files as a tokenizer of transformers, for Python programs."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from transformers import PreTrainedTokenizerFast


def load(files: Mapping[str, bytes]) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of "tokenizer.json" and "tokenizer_config.json".

    It encodes, decodes and renders chats in the caller's process, and knows nothing of an engine.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
        return loaded
