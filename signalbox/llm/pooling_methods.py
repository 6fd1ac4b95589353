"""`LLM.embed`, `encode`, `classify` and `score`: vectors of prompts, and scores of pairs."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.pooled_run import PooledRun, pooled_fields
from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.lora_request import LoRAInput, lora_for_each
from signalbox.llm.requests.outputs import RequestOutput
from signalbox.llm.requests.pooling_outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from signalbox.llm.requests.pooling_params import PoolingParams
from signalbox.llm.requests.prompts import Prompt, PromptInput, given_prompts
from signalbox_contract.pooling import Vector
from signalbox_router.generation.pooling.calls import ScoreCall
from signalbox_router.generation.pooling.prompt_encoder import check_one_output
from signalbox_router.requests.api_request import ApiRequest

PairInput = str | Sequence[str]
"""A text, or a list of texts."""


class PooledRequests(Protocol):
    """Runs prompts that are pooled; satisfied by `LLM`."""

    @property
    def _controlled(self) -> EngineCore: ...

    def _pooled(
        self, prompts: Sequence[Prompt], *, use_tqdm: bool
    ) -> list[tuple[RequestOutput, Vector]]: ...


class PoolingMethods:
    """Methods of `LLM` for a model that pools; one that generates refuses them with
    ValueError."""

    def embed(
        self: PooledRequests,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRAInput = None,
    ) -> list[EmbeddingRequestOutput]:
        """Returns an embedding of each prompt, of length 1 if the model makes such.

        Args:
            prompts: texts or token ids, as those of `generate`. The model's default prompt precedes
                texts.
            use_tqdm: whether to show progress.
            pooling_params: for all prompts.
            lora_request: adapter for all prompts, or a list of one for each.

        Raises ValueError or TypeError, before anything is computed, if a prompt cannot be served,
        and RuntimeError if one fails later.
        """
        run = _Run(self, "embed", pooling_params, "embed", lora_request, use_tqdm=use_tqdm)
        return [
            EmbeddingRequestOutput(
                **pooled_fields(output), outputs=EmbeddingOutput(vector.tolist())
            )
            for output, vector in run.vectors(prompts)
        ]

    def encode(
        self: PooledRequests,
        prompts: PromptInput | Sequence[PromptInput],
        pooling_params: PoolingParams | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoRAInput = None,
        pooling_task: str | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Returns what the model makes of each prompt; `outputs.data` is an array of float32.

        Args:
            pooling_task: "embed", "classify", or "token_embed" for a vector of each token; None is
                what the model does.
            prompts, pooling_params, use_tqdm, lora_request: as those of `embed`.
        """
        run = _Run(self, "encode", pooling_params, pooling_task, lora_request, use_tqdm=use_tqdm)
        return [
            PoolingRequestOutput(**pooled_fields(output), outputs=PoolingOutput(vector))
            for output, vector in run.vectors(prompts)
        ]

    def classify(
        self: PooledRequests,
        prompts: PromptInput | Sequence[PromptInput],
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRAInput = None,
    ) -> list[ClassificationRequestOutput]:
        """Returns the probabilities of each prompt's classes; arguments are those of `embed`."""
        run = _Run(self, "classify", pooling_params, "classify", lora_request, use_tqdm=use_tqdm)
        return [
            ClassificationRequestOutput(
                **pooled_fields(output), outputs=ClassificationOutput(vector.tolist())
            )
            for output, vector in run.vectors(prompts)
        ]

    def score(
        self: PooledRequests,
        data_1: PairInput,
        data_2: PairInput,
        /,
        *,
        use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRAInput = None,
        instruction: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Returns the score of each text of `data_2` for one text, or the text beside it.

        A classifier with one output reads both as one prompt; of embeddings it is
        the model's similarity, which is the cosine unless its directory names another.

        Args:
            data_1: one text, or as many as `data_2`.
            instruction: for a reranker with a template; None is the template's.
            use_tqdm, pooling_params, lora_request: as those of `embed`.
        """
        run = _Run(self, "score", pooling_params, None, lora_request, use_tqdm=use_tqdm)
        call = ScoreCall(
            queries=_texts("data_1", data_1),
            documents=_texts("data_2", data_2),
            instruction=instruction,
            query_field="data_1",
            document_field="data_2",
        )
        return [
            ScoringRequestOutput(**pooled_fields(output), outputs=ScoringOutput(score))
            for output, score in run.scores(call)
        ]


class _Run(PooledRun):
    """One call of an LLM: encodes its prompts, runs them, and applies the last function."""

    def __init__(
        self,
        llm: PooledRequests,
        name: str,
        params: PoolingParams | None,
        task: str | None,
        lora_request: LoRAInput,
        *,
        use_tqdm: bool,
    ) -> None:
        super().__init__(llm._controlled, name, params, task)
        self._llm = llm
        self._lora_request = lora_request
        self._use_tqdm = use_tqdm

    def vectors(
        self, given: PromptInput | Sequence[PromptInput]
    ) -> list[tuple[RequestOutput, Vector]]:
        """Returns the output and the vector of each prompt."""
        prompts = given_prompts(given, None)
        results = self._run(self.requests(prompts), [one.cache_salt for one in prompts])
        return [(output, self.finished(vector)) for output, vector in results]

    def scores(self, call: ScoreCall) -> list[tuple[RequestOutput, float]]:
        """Returns the output and the score of each document."""
        with refusing():
            call = replace(
                call,
                truncate_prompt_tokens=self.params.truncate_prompt_tokens,
                use_activation=self.params.is_activated,
            )
            call.check()
            check_one_output(self.model)
            requests = call.prompts(self.model)
        results = self._run(requests, [""] * len(requests))
        vectors = [vector[: self.params.dimensions] for _, vector in results]
        scores = call.scores(vectors, self.model)
        of_documents = results[-len(scores) :]
        return [(output, score) for (output, _), score in zip(of_documents, scores, strict=True)]

    def _run(
        self, requests: Sequence[ApiRequest], salts: Sequence[str]
    ) -> list[tuple[RequestOutput, Vector]]:
        with ThreadPoolExecutor(1) as thread:  # the calling thread may have an event loop
            encoded = thread.submit(lambda: asyncio.run(self.encoded(requests))).result()
        sha256 = self._llm._controlled.adapters.sha256
        adapters = lora_for_each(self._lora_request, len(requests))
        prompts = [
            one._replace(cache_salt=salt, adapter=sha256(adapter))
            for one, salt, adapter in zip(encoded, salts, adapters, strict=True)
        ]
        return self._llm._pooled(prompts, use_tqdm=self._use_tqdm)


def _texts(name: str, given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        raise TypeError(f"{name} is a text or a list of texts")
    return list(texts)
