"""Admits requests: checks, renders and tokenises them, and sends them to the scheduler.

Invalid requests are refused as cheaply as possible: first by the message alone, then by the length
of the prompt.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_router.config import RouterConfig
from signalbox_router.generation.call_context import CallContext
from signalbox_router.generation.pooling.prompt_encoder import (
    check_kind,
    check_truncation,
    encode_prompt,
    texts_of,
)
from signalbox_router.generation.prefix_watcher import PrefixWatcher, SentPrompt
from signalbox_router.generation.turn_truncation import encode_latest_turns
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.limits.payers import Payer
from signalbox_router.params import params_validation
from signalbox_router.params.generation_params import (
    NO_TEXTS,
    POOLED,
    EncodedFields,
    GenerationParams,
    SharedFields,
)
from signalbox_router.params.request_seeds import RequestSeeds
from signalbox_router.params.structured_output_check import (
    Constraint,
    GrammarChecker,
    Prepared,
)
from signalbox_router.params.token_validation import check_token_ids
from signalbox_router.parsers.answer_constraint import ANSWER, answer_constraint
from signalbox_router.parsers.reasoning_reader import Reasoning, reasoning_of
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.parsers.tool_call_reader import format_of_answer
from signalbox_router.parsers.tool_call_schema import forced_schema
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.length_errors import ContextOverflow, TextTooLong
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.receipts.receipts import check_receipt
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.api_request import (
    ApiRequest,
    PoolingRequest,
    PromptPair,
    PromptText,
    PromptTokens,
    timeout_ns,
)
from signalbox_router.requests.prefix_watch import PrefixWatch
from signalbox_router.requests.request_output import Echo
from signalbox_router.requests.session_key import session_key
from signalbox_router.schedulers.scheduler_pool import Schedulers


class EncodedPrompt(NamedTuple):
    """Tokens of a request's texts."""

    token_ids: list[int]
    field: str
    """Name of the prompt's field in the client's API, for error messages."""
    opening: str = ""
    """Text at the end of a conversation's prompt that begins the answer."""
    takes_tools: bool = False
    """True if the conversation's template renders tools."""
    echo: Echo | None = None
    fields: EncodedFields = NO_TEXTS
    reasoning: Reasoning | None = None
    """Reasoning of a conversation's answer."""
    tool_format: ToolCallFormat | None = None
    """Format of what a conversation's answer may have beside text."""
    structured_output: Prepared | None = None
    """Constraint in the form that the worker compiles."""
    constraint_scope: Scope = WHOLE
    """Part of the answer that the constraint applies to."""
    pooling: PoolingParams | None = None
    """Pooling of the prompt; None continues it."""
    snapshot_positions: tuple[int, ...] = ()
    """Positions of a conversation's prompt from which later requests are likely to go on."""


class Arrival(NamedTuple):
    """Identity of a request that has arrived."""

    request_id: str
    at_ns: int
    """Time on the clock of `now_ns`."""
    trace_context: tuple[str, str]
    """W3C traceparent and tracestate of the request's span."""
    model_wait_ns: int = 0
    """Time that it has waited until its model was loaded."""


class Admission:
    """Checks requests, tokenises them and submits them to a scheduler."""

    def __init__(self, config: RouterConfig, schedulers: Schedulers) -> None:
        self._config = config
        self._schedulers = schedulers
        self._grammars = GrammarChecker(
            disable_additional_properties=config.disable_additional_properties,
            max_cpu_s=config.max_grammar_cpu,
            max_memory_bytes=config.max_grammar_memory << 20,
        )
        self._seeds = None if config.seed is None else RequestSeeds(config.seed)
        self._prefixes = PrefixWatcher()

    def check(self, api_request: ApiRequest, model: ServedModel) -> None:
        """Checks the fields that need no tokens."""
        params_validation.check_priority(api_request.priority)
        params_validation.check_cache_salt(api_request.cache_salt)
        check_kind(api_request.pooled, model)
        if api_request.pooled is not None:
            self._check_pooled(api_request, api_request.pooled, model)
            return
        _check_sampling(api_request.sampling, model)
        if api_request.wants_receipt:
            check_receipt(api_request.sampling)
        if text := api_request.sampling.get("prediction"):
            field, most = "sampling_params.prediction", self.max_text_bytes
            params_validation.check_text(text, field=field, max_bytes=most)
        values = {"stream_interval": api_request.delivery.stream_interval}
        params_validation.check_request_values(values)
        params_validation.check_truncation(api_request.truncate_prompt_tokens, model)
        self._check_prompt(api_request, model)

    async def tokenize(
        self, api_request: ApiRequest, model: ServedModel, *, payer: Payer
    ) -> EncodedPrompt:
        """Returns the prompt's tokens, which fit the model's window, and the tokens of other
        texts."""
        if api_request.pooled is not None:
            token_ids, field, params = await encode_prompt(
                api_request, model, max_bytes=self.max_text_bytes, payer=payer
            )
            return EncodedPrompt(token_ids, field, pooling=params)
        encoded = await self._tokenize(api_request, model, payer)
        token_ids = encoded.token_ids
        params_validation.check_prompt_length(len(token_ids), field=encoded.field, model=model)
        encoded = await self._constrain(encoded, api_request, model, payer)
        return encoded._replace(
            echo=await self._echo(api_request, model, token_ids, payer)
            if api_request.delivery.echo
            else None,
            fields=await _encode_fields(api_request.sampling, model, payer),
        )

    async def _constrain(
        self, encoded: EncodedPrompt, api_request: ApiRequest, model: ServedModel, payer: Payer
    ) -> EncodedPrompt:
        """Adds the reasoning of a conversation's answer, and what constrains the answer."""
        constraint: Constraint = api_request.sampling.get("structured_output") or ()
        conversation, vocabulary = api_request.prompt, model.tokenizer.vocabulary
        rules, scope = "", WHOLE
        if isinstance(conversation, Conversation):
            encoded = self._with_formats(encoded, conversation, model)
            rules, scope = answer_constraint(
                conversation,
                vocabulary,
                encoded.reasoning,
                encoded.tool_format,
                is_constrained=bool(constraint),
            )
            is_answer = not rules or ANSWER in rules.partition("\n")[0]
            if is_answer and (schema := forced_schema(conversation)) is not None:
                constraint = ("json_schema", json.dumps(schema))  # no format has the calls
        if (constraint or rules or scope is not WHOLE) and "beam_search" in api_request.sampling:
            allowed = "none beside calls that conform or a bound on the reasoning"
            raise InvalidArgument("beam_search", "a search", allowed)
        if not (constraint or rules):
            return encoded._replace(constraint_scope=scope)
        return encoded._replace(
            structured_output=await self._grammars.prepare(
                constraint, rules=rules, vocabulary=vocabulary, payer=payer
            ),
            constraint_scope=scope,
        )

    def _with_formats(
        self, encoded: EncodedPrompt, conversation: Conversation, model: ServedModel
    ) -> EncodedPrompt:
        """Adds how the reasoning and the calls of a conversation's answer are written."""
        config = self._config
        return encoded._replace(
            reasoning=reasoning_of(
                conversation, model, encoded.opening, setting=config.reasoning_parser
            ),
            tool_format=format_of_answer(
                conversation,
                model,
                setting=config.tool_call_parser,
                takes_tools=encoded.takes_tools,
            ),
        )

    async def _echo(
        self, api_request: ApiRequest, model: ServedModel, token_ids: list[int], payer: Payer
    ) -> Echo:
        """Returns the prompt as sent; for a truncated one, the text of the tokens kept."""
        if not isinstance(api_request.prompt, PromptText):
            text, offsets = await model.tokenizer.decode_with_offsets(token_ids)
            return Echo(text, token_ids, offsets)
        text, cuts_end = api_request.prompt.text, api_request.truncate_end
        offsets = await model.tokenizer.offsets(
            text,
            add_special_tokens=api_request.prompt.add_special_tokens,
            last=None if cuts_end else len(token_ids),
            payer=payer,
        )
        if cuts_end:
            end = [*offsets, len(text)][len(token_ids)]
            return Echo(text[:end], token_ids, offsets[: len(token_ids)])
        start = 0 if api_request.truncate_prompt_tokens is None else offsets[0]
        return Echo(text[start:], token_ids, [offset - start for offset in offsets])

    def submit(
        self,
        api_request: ApiRequest,
        model: ServedModel,
        prompt: EncodedPrompt,
        call_context: CallContext,
        arrival: Arrival,
        *,
        kept_token_ids: frozenset[int],
    ) -> ActiveRequest:
        """Sends the request to the scheduler; the caller must release it.

        Special tokens of `kept_token_ids` are always in the text.
        """
        adapter = model.adapter(api_request.model)
        request = ActiveRequest(
            handle=self._schedulers.new_handle(),
            request_id=arrival.request_id,
            prompt_token_ids=prompt.token_ids,
            prompt_field=prompt.field,
            params=self._params(api_request, model, prompt) if prompt.pooling is None else POOLED,
            pooling=prompt.pooling,
            tokenizer=model.tokenizer,
            scheduler=self._schedulers,
            arrived_ns=arrival.at_ns,
            timeout_ns=timeout_ns(call_context.time_remaining),
            max_unread_tokens=self._config.max_unread_tokens,
            tenant=call_context.tenant,
            payer=call_context.payer,
            priority=api_request.priority,
            cache_salt=api_request.cache_salt,
            adapter=adapter.sha256 if adapter is not None else "",
            trace_context=arrival.trace_context,
            model_wait_ns=arrival.model_wait_ns,
            kept_token_ids=kept_token_ids,
            echo=prompt.echo,
            snapshot_positions=prompt.snapshot_positions,
            session=_session_of(api_request, call_context),
            keep_ns=api_request.keep_ns,
            prewarm=api_request.prewarm,
        )
        if request.session or api_request.prefix_query.is_asked:
            request.watch = self._watch(request, api_request, model, prompt, call_context.key)
        self._schedulers.submit(request, model)
        return request

    def pause(self, request: ActiveRequest, *, called_tool: bool) -> None:
        """Tells the scheduler that an answer of a session has been read to its end."""
        self._schedulers.pause(request, called_tool=called_tool)

    def _watch(
        self,
        request: ActiveRequest,
        api_request: ApiRequest,
        model: ServedModel,
        prompt: EncodedPrompt,
        key: ApiKey | None,
    ) -> PrefixWatch:
        """Compares the prompt with an earlier one of the tenant and the key."""
        shared = (model.name, model.fingerprint, request.adapter, request.cache_salt)
        sent = SentPrompt(prompt.token_ids, prompt.opening, shared, request.session)
        return self._prefixes.watch(api_request, sent, tenant=request.tenant, key=key)

    def _params(
        self, api_request: ApiRequest, model: ServedModel, prompt: EncodedPrompt
    ) -> GenerationParams:
        sampling = dict(api_request.sampling)
        if prompt.structured_output is not None:
            sampling["structured_output"], sampling["grammar_cost"] = prompt.structured_output
        if prompt.constraint_scope is not WHOLE:
            sampling["constraint_scope"] = prompt.constraint_scope
        if self._seeds is not None and "seed" not in sampling:
            sampling["seed"] = self._seeds.next(prompt.token_ids)
        return params_validation.resolve_params(
            sampling,
            num_prompt_tokens=len(prompt.token_ids),
            model=model,
            defaults=model.sampling_defaults,
            max_default_tokens=api_request.max_default_tokens,
            cuts_max_tokens=api_request.cuts_max_tokens,
            encoded=prompt.fields,
        )

    @property
    def max_text_bytes(self) -> int:
        """Bytes of the longest text that is tokenised. How many tokens it has is counted then: one
        may stand for any number of spaces or letters."""
        return self._config.max_prompt_bytes

    def _check_pooled(
        self, api_request: ApiRequest, pooled: PoolingRequest, model: ServedModel
    ) -> None:
        check_truncation(api_request.truncate_prompt_tokens, model)
        for field, text in texts_of(api_request.prompt, pooled):
            with self._naming_window(model):
                params_validation.check_text(text, field=field, max_bytes=self.max_text_bytes)

    def _check_prompt(self, api_request: ApiRequest, model: ServedModel) -> None:
        match api_request.prompt:
            case PromptText(text=text):
                if not text:
                    raise InvalidArgument("text", text, "a text that is not empty")
                with self._naming_window(model):
                    params_validation.check_text(text, field="text", max_bytes=self.max_text_bytes)
            case PromptTokens(token_ids=token_ids, field=field):
                length = min(len(token_ids), api_request.truncate_prompt_tokens or len(token_ids))
                params_validation.check_prompt_length(length, field=field, model=model)
                check_token_ids(token_ids, field=field, model=model)
            case Conversation() as conversation:
                conversation.check()

    async def _tokenize(
        self, api_request: ApiRequest, model: ServedModel, payer: Payer
    ) -> EncodedPrompt:
        """Returns the tokens that are not cut off, and what follows from the prompt alone."""
        if not api_request.truncate_end:
            return await self.encode(api_request, model, payer, api_request.truncate_prompt_tokens)
        encoded = await self.encode(api_request, model, payer, None)
        token_ids = encoded.token_ids[: api_request.truncate_prompt_tokens]
        positions = tuple(one for one in encoded.snapshot_positions if one <= len(token_ids))
        return encoded._replace(token_ids=token_ids, snapshot_positions=positions)

    async def encode(
        self, api_request: ApiRequest, model: ServedModel, payer: Payer, last: int | None = None
    ) -> EncodedPrompt:
        """Returns all tokens or the `last` ones, and what follows from the prompt alone."""
        match api_request.prompt:
            case PromptText(text=text, add_special_tokens=add_special_tokens):
                encode = model.tokenizer.encode(
                    text, add_special_tokens=add_special_tokens, last=last, payer=payer
                )
                return EncodedPrompt(await encode, "text")
            case PromptTokens(token_ids=token_ids, field=field):
                return EncodedPrompt(token_ids[-last:] if last else token_ids, field)
            case Conversation() as conversation:
                encode_chat = partial(
                    model.tokenizer.encode_chat,
                    max_bytes=self.max_text_bytes,
                    last=last,
                    kept=api_request.kept_tokens,
                    names_positions=model.takes_snapshot_positions,
                    payer=payer,
                )
                with self._naming_window(model):
                    if api_request.drops_turns:
                        most = model.window - api_request.sampling.get("max_tokens", 1)
                        chat = await encode_latest_turns(conversation, encode_chat, max_tokens=most)
                    else:
                        chat = await encode_chat(conversation)
                    return EncodedPrompt(
                        chat.token_ids,
                        "messages",
                        chat.opening,
                        chat.takes_tools,
                        snapshot_positions=chat.snapshot_positions,
                    )
            case PromptPair():
                raise AssertionError("a pair is pooled")

    @contextmanager
    def _naming_window(self, model: ServedModel) -> Iterator[None]:
        """Raises ContextOverflow for a text that is too long, if that is far beyond the window."""
        try:
            yield
        except TextTooLong as error:
            window = model.max_model_len
            if window * model.tokenizer.vocabulary.max_token_bytes >= self.max_text_bytes:
                raise
            allowed = f"at most {self.max_text_bytes} bytes"
            raise ContextOverflow(error.field, error.value, allowed, window=window) from None


def _session_of(api_request: ApiRequest, call_context: CallContext) -> bytes:
    """Returns the session of a request. A pooled one has none: no later one goes on from it."""
    if api_request.pooled is not None:
        return b""
    name = api_request.session_name or call_context.session_name
    return session_key(name, tenant=call_context.tenant, key=call_context.key)


def _check_sampling(fields: Mapping[str, Any], model: ServedModel) -> None:
    if not isinstance(fields, SharedFields):
        params_validation.check_sampling(fields, model)
    elif fields.checked_for is not model:
        params_validation.check_sampling(fields, model)
        fields.checked_for = model


async def _encode_fields(
    sampling: Mapping[str, Any], model: ServedModel, payer: Payer
) -> EncodedFields:
    bad_words = await model.tokenizer.encode_words(sampling.get("bad_words", ()))
    if not (text := sampling.get("prediction")):
        return EncodedFields(bad_words)
    token_ids = await model.tokenizer.encode(text, add_special_tokens=False, payer=payer)
    params_validation.check_prediction(token_ids, model)
    return EncodedFields(bad_words, tuple(token_ids))
