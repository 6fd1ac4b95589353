"""Calls of a model that pools, in plain types, and the requests that each becomes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from signalbox_contract.errors import FailedPrecondition, InvalidArgument
from signalbox_contract.pooling import PoolingModel, Task, Vector
from signalbox_router.generation.pooling.activations import activated
from signalbox_router.generation.pooling.embed_dtypes import EmbedDtype, check_dtype
from signalbox_router.generation.pooling.similarity import similarity_of
from signalbox_router.params.params_validation import check_request_id
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.api_request import (
    ApiRequest,
    PoolingRequest,
    PromptPair,
    PromptText,
    PromptTokens,
)

MAX_INPUTS = 2048
"""Inputs of one call, as many as OpenAI's API takes."""
MAX_BYTES = 8 << 20
"""UTF-8 bytes of a call's texts, with what is put before each: as many as an HTTP body has. A call
repeats a prompt for each input, and a query for each document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingCall:
    """Fields that all calls share."""

    request_id: str = ""
    model: str = ""
    priority: int = 0
    cache_salt: str = ""
    truncate_prompt_tokens: int | None = None
    truncate_start: bool = False
    use_activation: bool = True

    def requests(
        self,
        prompts: Sequence[PromptText | PromptTokens | PromptPair],
        *,
        task: Task,
        prefix: str = "",
    ) -> list[ApiRequest]:
        """Returns a request for each prompt. Raises InvalidArgument for an id that is not valid."""
        if self.request_id:
            check_request_id(self.request_id)
        return [
            ApiRequest(
                prompt=prompt,
                request_id=self._id_of(position, len(prompts)),
                model=self.model,
                priority=self.priority,
                cache_salt=self.cache_salt,
                truncate_prompt_tokens=self.truncate_prompt_tokens,
                pooled=PoolingRequest(
                    task,
                    prefix=prefix,
                    truncate_start=self.truncate_start,
                    is_first=position == 0,
                ),
            )
            for position, prompt in enumerate(prompts)
        ]

    def finished(self, vector: Vector, pooling: PoolingModel) -> Vector:
        """Returns a vector with the model's last function applied, unless the call leaves it
        out."""
        return activated(vector, pooling.activation) if self.use_activation else vector

    def _id_of(self, position: int, num_prompts: int) -> str:
        if not self.request_id or num_prompts == 1:
            return self.request_id
        return f"{self.request_id}-{position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedCall(PoolingCall):
    """Asks for a vector of each input."""

    inputs: Sequence[PromptText | PromptTokens]
    dimensions: int | None = None
    prompt_name: str | None = None
    """Name of the prompt before each text; None is the model's default."""
    prompt_text: str | None = None
    """The prompt before each text, instead of one of the model's."""
    task: Literal["embed", "token_embed"] = "embed"
    """`embed` makes a vector of each input, `token_embed` one of each token."""
    dtypes: Sequence[EmbedDtype] = ()
    """Types in which the client wants the elements; the vectors themselves are of float32."""
    dtype_field: str = "embed_dtype"
    """Name of the field in the client's API."""

    def check(self, pooling: PoolingModel) -> None:
        """Raises InvalidArgument for vectors that the model does not make."""
        check_dimensions(self.dimensions, pooling, task=self.task)
        whole = pooling.num_outputs if self.task == "embed" else pooling.num_token_outputs
        for dtype in self.dtypes:
            check_dtype(dtype, size=self.dimensions or whole, field=self.dtype_field)

    def embedding(self, vector: Vector, pooling: PoolingModel) -> Vector:
        """Returns what the client gets of an input: [dimensions], or [num_tokens, dimensions]."""
        if self.task == "embed":
            return self.finished(vector[: self.dimensions], pooling)
        return token_vectors(vector, pooling, is_activated=self.use_activation)

    def prefix(self, model: ServedModel) -> str:
        """Returns the prompt before each text. Raises InvalidArgument for an unknown name."""
        texts = model.tokenizer.pooling_texts
        if self.prompt_text is not None:
            return self.prompt_text
        name = texts.default_prompt_name if self.prompt_name is None else self.prompt_name
        if name is None:
            return ""
        if name not in texts.prompts:
            known = ", ".join(sorted(texts.prompts)) or "none, as the model has no prompts"
            raise InvalidArgument("prompt_name", name, known)
        return texts.prompts[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall(PoolingCall):
    """Asks how well documents answer queries."""

    queries: Sequence[str]
    documents: Sequence[str]
    instruction: str | None = None
    query_field: str = "queries"
    """Name of the field in the client's API."""
    document_field: str = "documents"

    def check(self) -> None:
        """Raises InvalidArgument for numbers of queries and documents that do not fit."""
        check_num_inputs(len(self.documents), field=self.document_field)
        num_queries, num_documents = len(self.queries), len(self.documents)
        if num_queries not in (1, num_documents):
            found, allowed = f"{num_queries} queries", f"1, or one for each of {num_documents}"
            raise InvalidArgument(self.query_field, found, f"{allowed} documents")

    def prompts(self, model: ServedModel) -> list[ApiRequest]:
        """Returns requests of pairs; for embeddings of the queries, then of the documents."""
        task = pooling_of(model).task
        if task == "classify":
            return self.requests(self._pairs(), task="classify")
        similarity_of(model)  # refuses what it cannot compute before anything is
        if self.instruction is not None:
            raise InvalidArgument("instruction", self.instruction, "unset for this model")
        prefixes = [retrieval_prompt(model, "query")] * len(self.queries)
        prefixes += [retrieval_prompt(model, "document")] * len(self.documents)
        requests = self.requests(self._texts(), task=task)
        return [
            replace(request, pooled=request.pooled and request.pooled._replace(prefix=prefix))
            for request, prefix in zip(requests, prefixes, strict=True)
        ]

    def scores(self, vectors: Sequence[Vector], model: ServedModel) -> list[float]:
        """Returns the score of each document, out of the vectors of `prompts`."""
        pooling = pooling_of(model)
        finished = [
            token_vectors(one, pooling, is_activated=self.use_activation)
            if pooling.task == "token_embed"
            else self.finished(one, pooling)
            for one in vectors
        ]
        if pooling.task == "classify":
            return [float(one[0]) for one in finished]
        queries, documents = finished[: len(self.queries)], finished[len(self.queries) :]
        queries = queries * len(documents) if len(queries) == 1 else queries
        return list(map(similarity_of(model), queries, documents))

    def _pairs(self) -> list[PromptPair]:
        return [
            PromptPair(
                self._query_of(i),
                document,
                self.instruction,
                query_field=_place(self.query_field, i, len(self.queries)),
                document_field=_place(self.document_field, i, len(self.documents)),
            )
            for i, document in enumerate(self.documents)
        ]

    def _texts(self) -> list[PromptText]:
        return [
            PromptText(text, True, _place(field, i, len(texts)))
            for field, texts in (
                (self.query_field, self.queries),
                (self.document_field, self.documents),
            )
            for i, text in enumerate(texts)
        ]

    def _query_of(self, position: int) -> str:
        return self.queries[position if len(self.queries) > 1 else 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyCall(PoolingCall):
    """Asks for the classes of each input."""

    inputs: Sequence[PromptText | PromptTokens]


def token_vectors(vector: Vector, pooling: PoolingModel, *, is_activated: bool) -> Vector:
    """Returns the vectors of a prompt's tokens, [num_tokens, num_token_outputs].

    Args:
        is_activated: whether they get length 1, unless the model was trained without.
    """
    rows = vector.reshape(-1, pooling.num_token_outputs)
    activation = pooling.activation if pooling.task == "token_embed" else "normalize"
    return activated(rows, activation) if is_activated else rows


def check_dimensions(asked: int | None, pooling: PoolingModel, *, task: Task = "embed") -> None:
    """Raises InvalidArgument for a length of vectors that the model does not declare."""
    allowed = sorted({*pooling.dimensions, pooling.num_outputs})
    if task == "token_embed":
        allowed = [pooling.num_token_outputs]
    if asked is not None and asked not in allowed:
        raise InvalidArgument("dimensions", asked, ", ".join(map(str, allowed)))


def check_num_inputs(number: int, *, field: str = "inputs") -> None:
    if not 1 <= number <= MAX_INPUTS:
        raise InvalidArgument(field, f"{number} inputs", f"1 to {MAX_INPUTS}")


def check_num_bytes(requests: Sequence[ApiRequest], *, field: str = "inputs") -> None:
    """Raises InvalidArgument if the texts of a call have more than MAX_BYTES."""
    total = 0
    for request in requests:
        match request.prompt:
            case PromptText(text=text):
                texts = [request.pooled.prefix if request.pooled else "", text]
            case PromptPair(query=query, document=document, instruction=instruction):
                texts = [query, document, instruction or ""]
            case _:
                continue
        total += sum(len(one) if one.isascii() else len(one.encode()) for one in texts)
        if total > MAX_BYTES:
            found = f"{len(requests)} texts, each with the prompt or the query before it,"
            raise InvalidArgument(
                field, found, f"at most {MAX_BYTES} bytes in a call; send fewer texts at a time"
            )


def pooling_of(model: ServedModel) -> PoolingModel:
    """Raises FailedPrecondition for a model that generates."""
    if model.pooling is None:
        raise FailedPrecondition(
            f"model {model.name!r} generates text; to embed or to score, serve a model with"
            " --runner pooling"
        )
    return model.pooling


def retrieval_prompt(model: ServedModel, role: Literal["query", "document"]) -> str:
    """Returns the model's prompt before queries or documents; without one, its default prompt."""
    prompts = model.tokenizer.pooling_texts.prompts
    names = ("query",) if role == "query" else ("document", "passage", "corpus")
    found = next((prompts[name] for name in names if name in prompts), None)
    return EmbedCall(inputs=()).prefix(model) if found is None else found


def _place(field: str, position: int, number: int) -> str:
    return field if number == 1 else f"{field}[{position}]"
