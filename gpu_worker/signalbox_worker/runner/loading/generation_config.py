"""Chooses the generation_config.json of a model: its own, another directory's, or none.

The default sampling parameters follow vLLM: `--generation-config` chooses the file,
`--override-generation-config` goes before it. End tokens are taken from all of them, whatever is
chosen, because a model that is not ended where it has learnt to end goes on with nonsense.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from signalbox_contract.sampling_defaults import SamplingDefaults
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.json_file import read_json
from signalbox_worker.generation_fields import default_params, end_token_ids
from signalbox_worker.runner.loading.hf_directory import GENERATION_CONFIG
from signalbox_worker.runner.loading.model_source import ModelSource

logger = logging.getLogger(__name__)

AUTO = "auto"
NONE = ("none", "vllm")
"""Names of the choice to read no file; the second is vLLM's."""


class GenerationConfig(NamedTuple):
    """Default sampling parameters and end-of-sequence tokens of a model."""

    defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    """End-of-sequence tokens, ascending."""


def read_generation_config(model_config: ModelConfig, source: ModelSource) -> GenerationConfig:
    """Raises ModelError that names the file and what is wrong in it."""
    chosen, where = _chosen(model_config, source)
    override = model_config.generation_override
    try:
        defaults = SamplingDefaults(model=default_params(chosen), override=default_params(override))
        ids = {*source.eos_token_ids(), *end_token_ids(chosen), *end_token_ids(override)}
    except ValueError as error:
        raise ModelError(f"{where}: {error}; or serve with --generation-config none") from None
    return GenerationConfig(defaults, tuple(sorted(ids)))


def within_vocabulary(eos_token_ids: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """Returns the end tokens that the model can draw; a warning names the others.

    With one that it cannot, every request would be refused for a stop token beyond the vocabulary.
    """
    beyond = [token_id for token_id in eos_token_ids if token_id >= vocab_size]
    if beyond:
        logger.warning(
            "end tokens beyond the vocabulary of %d are dropped: %s",
            vocab_size,
            ", ".join(map(str, beyond)),
        )
    return tuple(token_id for token_id in eos_token_ids if token_id < vocab_size)


def _chosen(model_config: ModelConfig, source: ModelSource) -> tuple[Mapping[str, Any], str]:
    """Returns the file's fields, and how messages call it."""
    setting = model_config.generation_config
    if setting == AUTO:
        return source.generation_config(), f"the generation config of {source.name}"
    if setting in NONE:
        return {}, ""
    path = Path(setting).expanduser() / GENERATION_CONFIG
    if not path.is_file():
        raise ModelError(
            f"--generation-config is {setting!r}, and there is no {path}; give a directory that"
            " has one, auto or none"
        )
    return read_json(path), str(path)
