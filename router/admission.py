"""Lets requests in: checks, renders, tokenises, and hands them to the scheduler.

Whatever can be refused is refused before it costs anything: first what the message alone tells,
then what its prompt's length tells.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from router import validation
from router.config import RouterConfig
from router.conversation import Conversation
from router.delivery import Delivery, Echo
from router.model import ServedModel
from router.request import GenerationRequest
from router.request_seeds import RequestSeeds
from router.schedulers import Schedulers
from router.structured_output import Constraint, GrammarChecker
from router.token_checks import check_token_ids
from rpc.errors import (
    AlreadyExists,
    ContextOverflow,
    DeadlineExceeded,
    InvalidArgument,
    ResourceExhausted,
    TextTooLong,
    Unavailable,
)

RETRY_AFTER_S = 1.0
MAX_TIMEOUT_NS = (1 << 63) - 1
"""A client may set a deadline of tens of thousands of years, which the wire does not hold."""

TimeRemaining = Callable[[], float | None]
"""Seconds until the RPC's deadline; None is unlimited."""


class TextPrompt(NamedTuple):
    text: str
    add_special_tokens: bool


class TokensPrompt(NamedTuple):
    token_ids: list[int]
    field: str = "token_ids.ids"
    """What the client's API calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the client sent it."""

    prompt: TextPrompt | TokensPrompt | Conversation
    request_id: str = ""
    """Empty asks for one."""
    model: str = ""
    """Empty is whatever is served."""
    priority: int = 0
    cache_salt: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The fields that are set, under their proto names."""
    max_default_tokens: int | None = None
    """Bounds max_tokens where `sampling` does not have it: an API's own default."""
    truncate_prompt_tokens: int | None = None
    delivery: Delivery = field(default_factory=Delivery)


class EncodedPrompt(NamedTuple):
    """What a request holds in text, as tokens."""

    token_ids: list[int]
    field: str
    """Name of the field in the client's API, for error messages."""
    echo: Echo | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    structured_output: Constraint | None = None
    """Constraint in the form that the worker compiles."""


class Admission:
    """Knows the live requests of this router."""

    def __init__(self, config: RouterConfig, schedulers: Schedulers) -> None:
        self._config = config
        self._schedulers = schedulers
        self._grammars = GrammarChecker(
            disable_additional_properties=config.disable_additional_properties
        )
        self._live_ids: set[tuple[str, str]] = set()  # (tenant, request id)
        self._seeds = None if config.seed is None else RequestSeeds(config.seed)

    @property
    def num_live(self) -> int:
        return len(self._live_ids)

    @property
    def max_live(self) -> int:
        return self._config.max_live_requests

    def check(self, asked: Asked, model: ServedModel) -> None:
        """Checks what needs no tokens."""
        validation.check_model(asked.model, model)
        validation.check_priority(asked.priority)
        validation.check_cache_salt(asked.cache_salt)
        validation.check_sampling(asked.sampling, model)
        values = {"stream_interval": asked.delivery.stream_interval}
        if asked.truncate_prompt_tokens is not None:
            values["truncate_prompt_tokens"] = asked.truncate_prompt_tokens
        validation.check_request_values(values)
        self._check_prompt(asked, model)

    @contextmanager
    def reserve(self, request_id: str, *, tenant: str = "") -> Iterator[str]:
        """Takes the id, or a new one for an empty one, for as long as the request lives."""
        request_id = request_id or uuid.uuid4().hex
        validation.check_request_id(request_id)
        live_id = (tenant, request_id)
        if live_id in self._live_ids:
            raise AlreadyExists(f"a request with id {request_id!r} is live")
        if len(self._live_ids) >= self._config.max_live_requests:
            raise ResourceExhausted(
                f"{len(self._live_ids)} requests are live, as many as this router takes",
                retry_after_s=RETRY_AFTER_S,
            )
        self._live_ids.add(live_id)
        try:
            yield request_id
        finally:
            self._live_ids.remove(live_id)

    async def tokenize(self, asked: Asked, model: ServedModel) -> EncodedPrompt:
        """Returns the prompt's tokens, which fit the model's window, and what else is text."""
        constraint = asked.sampling.get("structured_output")
        if constraint is not None:
            constraint = await self._grammars.prepare(constraint)
        token_ids, prompt_field = await self._tokenize(asked, model)
        if asked.truncate_prompt_tokens is not None:
            token_ids = token_ids[-asked.truncate_prompt_tokens :]
        validation.check_prompt_length(len(token_ids), field=prompt_field, model=model)
        return EncodedPrompt(
            token_ids,
            prompt_field,
            echo=await self._echo(asked, model, token_ids) if asked.delivery.echo else None,
            bad_words=await model.tokenizer.encode_words(asked.sampling.get("bad_words", ())),
            structured_output=constraint,
        )

    async def _echo(self, asked: Asked, model: ServedModel, token_ids: list[int]) -> Echo:
        """Returns the prompt as it was sent; of a truncated one, the text of the tokens kept."""
        if not isinstance(asked.prompt, TextPrompt):
            text, offsets = await model.tokenizer.decode_with_offsets(token_ids)
            return Echo(text, token_ids, offsets)
        text = asked.prompt.text
        offsets = await model.tokenizer.offsets(
            text, add_special_tokens=asked.prompt.add_special_tokens
        )
        offsets = offsets[-len(token_ids) :]
        start = 0 if asked.truncate_prompt_tokens is None else offsets[0]
        return Echo(text[start:], token_ids, [offset - start for offset in offsets])

    def submit(
        self,
        asked: Asked,
        model: ServedModel,
        prompt: EncodedPrompt,
        *,
        request_id: str,
        tenant: str = "",
        arrived_ns: int,
        time_remaining: TimeRemaining,
        trace_context: tuple[str, str],
        kept_token_ids: frozenset[int],
    ) -> GenerationRequest:
        """Hands the request to the scheduler. The caller closes what this returns.

        Args:
            kept_token_ids: special tokens that the text shows in any case.
        """
        if model != self._schedulers.model:
            raise Unavailable("the served model has just changed", RETRY_AFTER_S)
        sampling = {**asked.sampling, "structured_output": prompt.structured_output}
        if self._seeds is not None and "seed" not in sampling:
            sampling["seed"] = self._seeds.next(prompt.token_ids)
        params = validation.resolve_params(
            sampling,
            num_prompt_tokens=len(prompt.token_ids),
            model=model,
            defaults=model.sampling_defaults,
            max_default_tokens=asked.max_default_tokens,
            bad_words=prompt.bad_words,
        )
        request = GenerationRequest(
            handle=self._schedulers.new_handle(),
            request_id=request_id,
            prompt_token_ids=prompt.token_ids,
            prompt_field=prompt.field,
            params=params,
            tokenizer=model.tokenizer,
            link=self._schedulers,
            arrived_ns=arrived_ns,
            max_unread_tokens=self._config.max_unread_tokens,
            timeout_ns=timeout_ns(time_remaining),
            tenant=tenant,
            priority=asked.priority,
            cache_salt=asked.cache_salt,
            trace_context=trace_context,
            kept_token_ids=kept_token_ids,
        )
        self._schedulers.submit(request)
        return request

    def max_text_bytes(self, model: ServedModel, *, is_truncated: bool = False) -> int:
        """No longer text can fit the window, so it is not worth tokenising unless truncated."""
        if is_truncated:
            return self._config.max_prompt_bytes
        longest = model.max_model_len * model.tokenizer.max_token_bytes
        return min(self._config.max_prompt_bytes, longest)

    def _max_text_bytes_of(self, asked: Asked, model: ServedModel) -> int:
        return self.max_text_bytes(model, is_truncated=asked.truncate_prompt_tokens is not None)

    def _check_prompt(self, asked: Asked, model: ServedModel) -> None:
        match asked.prompt:
            case TextPrompt(text=text):
                if not text:
                    raise InvalidArgument("text", text, "a text that is not empty")
                max_bytes = self._max_text_bytes_of(asked, model)
                with self._naming_window(max_bytes, model):
                    validation.check_text(text, field="text", max_bytes=max_bytes)
            case TokensPrompt(token_ids=token_ids, field=field):
                length = min(len(token_ids), asked.truncate_prompt_tokens or len(token_ids))
                validation.check_prompt_length(length, field=field, model=model)
                check_token_ids(token_ids, field=field, model=model)
            case Conversation() as conversation:
                conversation.check()

    async def _tokenize(self, asked: Asked, model: ServedModel) -> tuple[list[int], str]:
        """Returns the tokens, and the field that they came from."""
        match asked.prompt:
            case TextPrompt(text=text, add_special_tokens=add_special_tokens):
                encode = model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
                return await encode, "text"
            case TokensPrompt(token_ids=token_ids, field=field):
                return token_ids, field
            case Conversation() as conversation:
                max_bytes = self._max_text_bytes_of(asked, model)
                with self._naming_window(max_bytes, model):
                    encode = model.tokenizer.encode_chat(conversation, max_bytes=max_bytes)
                    return await encode, "messages"

    @contextmanager
    def _naming_window(self, max_bytes: int, model: ServedModel) -> Iterator[None]:
        """Raises ContextOverflow for a text too long, where the window is what bounds it."""
        try:
            yield
        except TextTooLong as error:
            if max_bytes == self._config.max_prompt_bytes:
                raise
            window, allowed = model.max_model_len, f"at most {max_bytes} bytes"
            raise ContextOverflow(error.field, error.value, allowed, window=window) from None


def timeout_ns(time_remaining: TimeRemaining) -> int | None:
    """Raises DeadlineExceeded if no time is left."""
    remaining_s = time_remaining()
    if remaining_s is None:
        return None
    if remaining_s <= 0:
        raise DeadlineExceeded("the deadline has passed")
    return min(max(1, int(remaining_s * 1e9)), MAX_TIMEOUT_NS)


def now_ns() -> int:
    """The clock of `arrived_ns`."""
    return time.monotonic_ns()
