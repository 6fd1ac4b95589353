"""A model without its weights (`load_format` "dummy"): they are made up where it is built.

The model's directory needs no more than config.json; without a tokenizer there it speaks bytes.
"""

from pathlib import Path

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.models.family_config import FamilyConfig
from signalbox_worker.runner.loading.byte_tokenizer import MIN_VOCAB_SIZE, tokenizer_files
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from signalbox_worker.runner.loading.tokenizer_files import has_tokenizer

SPREAD = 0.035
"""Random weights are in [-SPREAD, SPREAD]: a standard deviation of 0.02, as models are initialised
with."""


class DummySource(DirectorySource):
    """A directory whose weights, if it has any, are not read."""

    sizes = None

    def files(self) -> list[Path]:
        return [self._path / "config.json"]

    def stored(self) -> dict[str, StoredTensor]:
        raise ModelError(
            f"load_format 'dummy' makes no weights of {self._path}'s head; leave it out"
        )

    def tokenizer_files(self) -> dict[str, bytes]:
        if has_tokenizer(self._path):
            return super().tokenizer_files()
        config = FamilyConfig.of_file(self.config)
        vocab_size = int(config["vocab_size"] or 0)
        if vocab_size < MIN_VOCAB_SIZE:
            raise ModelError(
                f"{self._path} has no tokenizer, and a vocabulary of {vocab_size} cannot hold the "
                f"{MIN_VOCAB_SIZE} tokens of a byte-level one; add tokenizer.json"
            )
        max_model_len = int(config["max_position_embeddings"] or 2048)
        return tokenizer_files(vocab_size=vocab_size, max_model_len=max_model_len)
