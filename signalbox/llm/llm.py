"""`LLM`: a model in this process, for a list of prompts at a time."""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

from signalbox.llm import progress_bar
from signalbox.llm.controls import Controls
from signalbox.llm.engine_args import EngineArgs
from signalbox.llm.engine_options import check_known, takes_options_of
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.llm_engine import LLMEngine
from signalbox.llm.pooling_methods import PoolingMethods
from signalbox.llm.requests.beam_search import (
    BeamSearchOutput,
    BeamSearchParams,
    beam_search_output,
)
from signalbox.llm.requests.conversations import Turns, messages_of, tools_of
from signalbox.llm.requests.lora_request import LoRAInput, lora_for_each
from signalbox.llm.requests.outputs import RequestOutput
from signalbox.llm.requests.prompts import Prompt, PromptInput, given_prompts
from signalbox.llm.requests.sampling_params import SamplingParams, checked
from signalbox.llm.vllm_options import check_arguments
from signalbox_contract.pooling import Vector
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)

ParamsInput = SamplingParams | Sequence[SamplingParams] | None


class LLM(PoolingMethods, Controls):
    """Loads a model, and generates for lists of prompts; see `EngineArgs` for the options.

    The scheduler and the worker are those of the services, without gRPC between them. An option
    that is not served is refused. `close`, or leaving a `with` block, frees the memory.
    """

    @takes_options_of(EngineArgs, disable_log_stats=True)
    def __init__(self, model: str, **options: Any) -> None:
        """Raises TypeError or ValueError for an option; what loading the model raises, too."""
        check_known(options, EngineArgs)
        engine_args = EngineArgs(model, **{"disable_log_stats": True, **options})
        self._set_engine(LLMEngine.from_engine_args(engine_args))

    @classmethod
    def _from_runner(
        cls, make_runner: Callable[[], Runner], config: CoreConfig | None = None
    ) -> Self:
        """Makes an LLM of a runner, for tests and for runners without a model."""
        self = cls.__new__(cls)
        self._set_engine(LLMEngine._from_runner(make_runner, config))
        return self

    def _set_engine(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._request_ids = map(str, itertools.count())

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput] | None = None,
        sampling_params: ParamsInput = None,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoRAInput = None,
        priority: int | Sequence[int] | None = 0,
        **unserved: object,
    ) -> list[RequestOutput]:
        """Generates for each prompt; returns the outputs in their order.

        Args:
            prompts: a text or a list of texts; also {"prompt": text} and
                {"prompt_token_ids": ids}, with a "cache_salt" or, beside a text,
                "add_special_tokens" if wanted.
            sampling_params: for all prompts, or a list of one for each. None is the model's
                default parameters; parameters that are given are left as they are.
            prompt_token_ids: the prompts as tokens, instead of their texts.
            use_tqdm: whether to show progress, with tokens per second.
            lora_request: adapter for all prompts, or a list of one for each.
            priority: for all prompts, or a list of one for each; less comes first, where
                `scheduling_policy` goes by it.
            unserved: arguments of vLLM's, such as `tokenization_kwargs`, at their neutral value.

        Raises ValueError or TypeError, before anything is computed, if a prompt cannot be served. A
        request that fails later has `finish_reason` "error" and says why in `error`.
        """
        check_arguments("generate", unserved)
        given = given_prompts(prompts, prompt_token_ids)
        params = _for_each(sampling_params, self.llm_engine.default_params, len(given))
        encode = self.llm_engine.encoder.encode
        encoded = [
            encode(prompt, field=f"prompts[{i}]", truncate=one.truncate_prompt_tokens)
            for i, (prompt, one) in enumerate(zip(given, params, strict=True))
        ]
        adapted = self._adapted(encoded, lora_request)
        return self._run(adapted, params, use_tqdm=use_tqdm, priority=priority)

    def chat(
        self,
        messages: Turns | Sequence[Turns],
        sampling_params: ParamsInput = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        parse_special_tokens: bool = False,
        lora_request: LoRAInput = None,
        priority: int | Sequence[int] | None = 0,
        **unserved: object,
    ) -> list[RequestOutput]:
        """Answers a conversation, or each of a list; the text is as the model wrote it.

        Args:
            messages: OpenAI's: {"role": ..., "content": ...}, tool calls and results included.
            chat_template: a Jinja template instead of the model's.
            add_generation_prompt: whether the template opens the assistant's turn.
            continue_final_message: whether the last message is left open, and the answer goes on
                with it; needs add_generation_prompt=False.
            tools: what the template shows to the model, in OpenAI's form.
            chat_template_kwargs: variables of the template beside its usual ones.
            parse_special_tokens: True if control tokens are also recognised in the text of messages
                and tools, and not in the template's own alone.
            sampling_params, use_tqdm, lora_request, priority: as those of `generate`.
        """
        check_arguments("chat", unserved)
        is_one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if is_one else messages
        params = _for_each(sampling_params, self.llm_engine.default_params, len(conversations))
        encoded = []
        for i, (turns, one) in enumerate(zip(conversations, params, strict=True)):
            field = "messages" if is_one else f"messages[{i}]"
            conversation = Conversation(
                messages=messages_of(turns, field=field),
                tools=tools_of(tools),
                chat_template=chat_template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                template_kwargs=dict(chat_template_kwargs or {}),
                parse_special_tokens=parse_special_tokens,
            )
            encode = self.llm_engine.encoder.encode_chat
            encoded.append(encode(conversation, field=field, truncate=one.truncate_prompt_tokens))
        adapted = self._adapted(encoded, lora_request)
        return self._run(adapted, params, use_tqdm=use_tqdm, priority=priority)

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
        *,
        lora_request: LoRAInput = None,
        **unserved: object,
    ) -> list[BeamSearchOutput]:
        """Finds the best hypotheses for each prompt, the best first.

        Args:
            prompts: as those of `generate`.
            use_tqdm: whether to show progress.
            concurrency_limit: prompts that are searched at a time; None is all.
            lora_request: as that of `generate`.

        Raises ValueError or TypeError, before anything is computed, if a prompt cannot be served.
        """
        check_arguments("beam_search", unserved)
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params is a {type(params).__name__}; give BeamSearchParams")
        if concurrency_limit is not None and concurrency_limit < 1:
            raise ValueError(f"concurrency_limit is {concurrency_limit}; it must be at least 1")
        given, encode = given_prompts(prompts, None), self.llm_engine.encoder.encode
        encoded = [encode(prompt, field=f"prompts[{i}]") for i, prompt in enumerate(given)]
        encoded = self._adapted(encoded, lora_request)
        sampling, size = params.sampling_params(), concurrency_limit or max(1, len(encoded))
        outputs: list[RequestOutput] = []
        for start in range(0, len(encoded), size):
            part = encoded[start : start + size]
            outputs += self._run(part, [sampling] * len(part), use_tqdm=use_tqdm)
        tokenizer = self._controlled.model.tokenizer
        return [beam_search_output(output, params, tokenizer) for output in outputs]

    def get_tokenizer(self) -> Any:
        """Returns the model's tokenizer as transformers has it, made at the first call."""
        return self.llm_engine.get_tokenizer()

    def reward(self, *_: object, **__: object) -> NoReturn:
        """Raises NotImplementedError: `encode` and `classify` serve models of rewards."""
        raise NotImplementedError("reward is not served; call classify with use_activation=False")

    @property
    def _controlled(self) -> EngineCore:
        return self.llm_engine._core

    def close(self) -> None:
        """Ends the execution thread and frees the model."""
        self.llm_engine.close()

    def _adapted(self, encoded: list[Prompt], given: LoRAInput) -> list[Prompt]:
        """Returns the prompts with their adapters, which are loaded if they are not."""
        sha256 = self._controlled.adapters.sha256
        pairs = zip(encoded, lora_for_each(given, len(encoded)), strict=True)
        return [prompt._replace(adapter=sha256(one)) for prompt, one in pairs]

    def _run(
        self,
        encoded: list[Prompt],
        params: Sequence[SamplingParams],
        *,
        use_tqdm: bool,
        priority: int | Sequence[int] | None = 0,
    ) -> list[RequestOutput]:
        if not isinstance(use_tqdm, bool):
            raise TypeError("use_tqdm is True or False; a progress bar of yours is not served")
        priorities = _priorities(priority, len(encoded))
        request_ids: list[str] = []
        engine = self.llm_engine
        with self._controlled.interrupts:
            try:
                for prompt, one, priority in zip(encoded, params, priorities, strict=True):
                    request_ids.append(next(self._request_ids))
                    engine.add_prompt(request_ids[-1], prompt, one, priority=priority)
                finished = self._finish(len(encoded), is_visible=use_tqdm)
            except BaseException:
                engine.abort_request(request_ids)
                raise
        return [finished[request_id] for request_id in request_ids]

    def _pooled(
        self, prompts: Sequence[Prompt], *, use_tqdm: bool
    ) -> list[tuple[RequestOutput, Vector]]:
        """Returns the output and the vector of each prompt. Raises RuntimeError if one fails."""
        request_ids: list[str] = []
        engine, core = self.llm_engine, self._controlled
        with core.interrupts:
            try:
                for prompt in prompts:
                    request_ids.append(next(self._request_ids))
                    engine.add_pooled(request_ids[-1], prompt)
                finished = self._finish(len(prompts), is_visible=use_tqdm)
            except BaseException:
                engine.abort_request(request_ids)
                raise
        vectors = engine.pop_vectors()
        for request_id in request_ids:
            if (error := finished[request_id].error) is not None:
                raise RuntimeError(f"request {request_id} failed: {error}")
        return [(finished[one], vectors[one]) for one in request_ids]

    def _finish(self, num_requests: int, *, is_visible: bool) -> dict[str, RequestOutput]:
        """Runs steps until all requests have ended; returns the outputs by request id."""
        engine = self.llm_engine
        num_prompt_tokens, num_generated = engine.num_prompt_tokens, engine.num_generated_tokens
        finished: dict[str, RequestOutput] = {}
        with progress_bar.showing(num_requests=num_requests, is_visible=is_visible) as report:
            while engine.has_unfinished_requests():
                for output in engine.step_finished():
                    finished[output.request_id] = output
                    if output.error is not None:
                        logger.warning("request %s failed: %s", output.request_id, output.error)
                report(
                    num_finished=len(finished),
                    num_prompt_tokens=engine.num_prompt_tokens - num_prompt_tokens,
                    num_generated_tokens=engine.num_generated_tokens - num_generated,
                )
        return finished


def _for_each(given: ParamsInput, default: SamplingParams, count: int) -> Sequence[SamplingParams]:
    if given is None or not isinstance(given, Sequence):
        return [checked(given, default)] * count
    if len(given) != count:
        raise ValueError(f"{len(given)} sampling_params for {count} prompts; give one, or as many")
    return [checked(one, default) for one in given]


def _priorities(given: int | Sequence[int] | None, count: int) -> Sequence[int]:
    if given is None or isinstance(given, int):
        return [given or 0] * count
    if len(given) != count:
        raise ValueError(f"{len(given)} priorities for {count} prompts; give one, or as many")
    return given
