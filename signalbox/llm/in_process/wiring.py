"""The options of an engine in this process, and the model as the router's checks see it."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from signalbox.llm.in_process.local_worker import LocalWorker
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_scheduler.config import SchedulingSettings
from signalbox_worker.sampling.grammars import MEMORY_BYTES

SCHEDULING = SchedulingSettings(prefill_spread_steps=1)
"""All prompts are there at once, so their steps are not spread over decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreConfig:
    """Options of the core beside the runner's."""

    scheduling: SchedulingSettings = SCHEDULING
    grammar_bytes: int = MEMORY_BYTES
    """Memory for compiled structured outputs."""
    seed: int | None = 0
    """Seed of the sequence of seeds for requests without one; None differs from run to run."""
    stream_interval: int = 1
    """Fewest tokens of a sequence between two outputs, except the first and the last."""
    disable_additional_properties: bool = True
    """True if objects of JSON schemas have only the keys that they declare."""
    tokenizer_files: Mapping[str, bytes] | None = None
    """Tokenizer files that replace the model's own."""
    chat_template: str | None = None
    """Source of a chat template that replaces the tokenizer's."""
    max_logprobs: int | None = 20
    """Maximum logprobs at a position that a request may ask for; None is no limit."""
    profile_folder: str | None = None
    """Folder for profiles; None disables profiling."""
    enable_lora: bool = False
    """True if requests may name adapters that are not loaded."""
    log_stats: bool = False


def served_model(
    worker: LocalWorker,
    files: Mapping[str, bytes],
    pool: ThreadPoolExecutor,
    *,
    chat_template: str | None = None,
) -> ServedModel:
    """Returns the model for the router's checks. Raises ValueError for unusable tokenizer files."""
    model = worker.model
    tokenizer = Tokenizer(
        files, vocab_size=model.vocab_size, pool=pool, chat_template=chat_template
    )
    max_token_id = tokenizer.vocabulary.max_token_id
    if files is not worker.tokenizer_files and max_token_id >= model.vocab_size:
        raise ValueError(
            f"tokenizer has token ids up to {max_token_id}; "
            f"{model.name} knows ids below {model.vocab_size}"
        )
    return ServedModel.of(model, tokenizer)
