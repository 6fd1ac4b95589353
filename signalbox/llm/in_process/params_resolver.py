"""Makes the parameters of a request from `SamplingParams`: defaults, seeds, checks."""

import random
from collections.abc import Mapping
from typing import Any

from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.field_checks import ALL_TOKENS
from signalbox.llm.requests.sampling_params import LIMITS, LOGPROBS, SamplingParams
from signalbox.llm.requests.structured_outputs import prepare
from signalbox_contract.sampling_defaults import NO_DEFAULTS
from signalbox_router.params import params_validation
from signalbox_router.params.generation_params import EncodedFields, GenerationParams
from signalbox_router.prompt.served_model import ServedModel


class ParamsResolver:
    """Resolves the parameters of one engine's requests; owns the sequence of their seeds."""

    def __init__(self, model: ServedModel, config: CoreConfig) -> None:
        self._model = model
        self._config = config
        self._seeds = random.Random(config.seed)

    def resolve(self, params: SamplingParams, *, num_prompt_tokens: int) -> GenerationParams:
        """Returns parameters with defaults. Raises ValueError if the model or the prompt forbids
        them."""
        fields = params.fields()
        room = self._model.max_model_len - num_prompt_tokens
        if "max_tokens" in fields:  # a sequence ends where the window does
            fields["max_tokens"] = min(fields["max_tokens"], room)
            fields["min_tokens"] = min(fields["min_tokens"], room)
        if "seed" not in fields:
            fields["seed"] = self._seeds.getrandbits(64)
        self._resolve_logprobs(fields)
        with refusing():
            params_validation.check_sampling(fields, self._model, LIMITS)
            if "structured_output" in fields:
                fields["structured_output"] = prepare(
                    fields["structured_output"],
                    self._model.tokenizer.vocabulary,
                    disable_additional_properties=self._config.disable_additional_properties,
                )
            return params_validation.resolve_params(
                fields,
                num_prompt_tokens=num_prompt_tokens,
                model=self._model,
                defaults=NO_DEFAULTS,  # parameters that are given are whole
                encoded=self._encode_fields(fields),
            )

    def _encode_fields(self, fields: Mapping[str, Any]) -> EncodedFields:
        tokenizer = self._model.tokenizer
        bad_words = tokenizer.encode_words_blocking(fields["bad_words"])
        if not (text := fields.get("prediction")):
            return EncodedFields(bad_words)
        token_ids = tokenizer.encode_blocking(text, add_special_tokens=False)
        params_validation.check_prediction(token_ids, self._model)
        return EncodedFields(bad_words, tuple(token_ids))

    def _resolve_logprobs(self, fields: dict[str, Any]) -> None:
        """Replaces -1 by the vocabulary's size. Raises ValueError beyond the bounds."""
        most, size = self._config.max_logprobs, self._model.vocab_size
        for name in LOGPROBS:
            if (count := fields.get(name)) is None:
                continue
            where = f"sampling_params.{name} is {count}; it must be"
            if most is not None and not 0 <= count <= most:
                raise ValueError(
                    f"{where} at most max_logprobs, {most}, an option of the engine that is -1 for"
                    " no bound"
                )
            if count > size:
                raise ValueError(f"{where} at most {size}, the vocabulary")
            fields[name] = size if count == ALL_TOKENS else count
