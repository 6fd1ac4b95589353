"""`LLMEngine`: generates step by step for queued requests; the base of `LLM`."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

from signalbox.llm.controls import Controls, Queues, queues
from signalbox.llm.engine_args import EngineArgs
from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.in_process_request import InProcessRequest
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.llm.requests import prompts
from signalbox.llm.requests.beam_search import BeamSearchParams
from signalbox.llm.requests.lora_request import LoRARequest
from signalbox.llm.requests.outputs import RequestOutput
from signalbox.llm.requests.prompts import Prompt, PromptEncoder, PromptInput
from signalbox.llm.requests.sampling_params import SamplingParams, checked
from signalbox_contract.pooling import Vector
from signalbox_router.params.generation_params import POOLED
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)


class LLMEngine(Controls):
    """Generates for many requests at once. Only one thread may use it at a time.

    Two steps are in flight at any time, so `step` returns the outputs of the older one. `close`, or
    leaving a `with` block, frees the model's memory.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._requests: dict[str, InProcessRequest] = {}
        self._vectors: dict[str, Vector] = {}

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Loads the model. Raises ValueError, FileNotFoundError or MemoryError."""
        make_runner = engine_args.make_runner()
        return cls(EngineCore.load(make_runner, engine_args.core_config()))

    @classmethod
    def _from_runner(
        cls, make_runner: Callable[[], Runner], config: CoreConfig | None = None
    ) -> Self:
        return cls(EngineCore.load(make_runner, config or CoreConfig()))

    def add_request(
        self,
        request_id: str,
        prompt: PromptInput | None,
        params: SamplingParams | BeamSearchParams | None = None,
        prompt_token_ids: list[int] | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> None:
        """Queues a request. Raises ValueError or TypeError if it cannot be served.

        Args:
            lora_request: adapter that computes it, loaded now if it is not.
            priority: lower comes first, if the scheduling policy uses it.
        """
        given = prompts.given_prompts(
            None if prompt is None else [prompt],
            None if prompt_token_ids is None else [prompt_token_ids],
        )
        if isinstance(params, BeamSearchParams):
            params = params.sampling_params()
        params = checked(params, self._core.default_params)
        encoded = self.encoder.encode(given[0], truncate=params.truncate_prompt_tokens)
        adapted = encoded._replace(adapter=self._core.adapters.sha256(lora_request))
        self.add_prompt(request_id, adapted, params, priority=priority)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request names it. Raises ValueError."""
        return bool(self._core.adapters.sha256(lora_request))

    def list_loras(self) -> set[int]:
        """Returns the numbers of the adapters that requests have named."""
        return self._core.adapters.known_ids

    def add_prompt(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
    ) -> None:
        """Queues a prompt that `encoder` has made."""
        resolved = self._core.params.resolve(params, num_prompt_tokens=len(prompt.token_ids))
        with self._core.interrupts:
            request = self._core.add(request_id, prompt, resolved, priority=priority)
            request.output_kind = params.output_kind
            self._requests[request_id] = request

    def add_pooled(self, request_id: str, prompt: Prompt) -> None:
        """Queues a prompt that is pooled; `pop_vectors` returns its vector after its end."""
        with self._core.interrupts:
            self._requests[request_id] = self._core.add(request_id, prompt, POOLED)

    def pop_vectors(self) -> dict[str, Vector]:
        """Returns the vectors of the requests that have ended since the last call, by id."""
        popped, self._vectors = self._vectors, {}
        return popped

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Ends requests without an output; ids that are not live are ignored."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            with self._core.interrupts:
                if (request := self._requests.pop(one, None)) is not None:
                    self._core.abort(request)

    def has_unfinished_requests(self) -> bool:
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        return len(self._requests)

    def step(self) -> list[RequestOutput]:
        """Waits for a step; returns the outputs of its requests that are due by their
        output_kind.

        Raises EngineDeadError if the device has failed.
        """
        return [request.output() for request in self._step() if request.is_due]

    def step_finished(self) -> list[RequestOutput]:
        """Runs a step as `step` does, for ended requests only: others are not even detokenised."""
        return [request.output() for request in self._step() if request.ended is not None]

    def _step(self) -> list[InProcessRequest]:
        core = self._core
        with self._core.interrupts:
            core.send_steps()
            if core.oldest is not None:
                core.interrupts.wait(core.oldest)
            touched = core.complete_step()
            core.send_steps()  # the worker goes on while the caller reads
            while core.is_busy and not core.num_unfinished:
                touched += core.complete_step()  # what a request that has ended left behind
            for request in touched:
                if request.ended is not None:
                    del self._requests[request.request_id]
                    if request.vector is not None:
                        self._vectors[request.request_id] = request.vector
            return touched

    @property
    def _controlled(self) -> EngineCore:
        return self._core

    @property
    def scheduler(self) -> Queues:
        """The requests that wait, run and are swapped out now."""
        return queues(self._core)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that `get_tokenizer` returns."""
        return self.get_tokenizer()

    def do_log_stats(self) -> None:
        """Logs the statistics since the last call, unless `disable_log_stats` is set."""
        self._core.log_stats(time.monotonic())

    @property
    def encoder(self) -> PromptEncoder:
        return self._core.encoder

    @property
    def default_params(self) -> SamplingParams:
        """Default parameters of a request: the model's."""
        return self._core.default_params

    @property
    def num_generated_tokens(self) -> int:
        """Generated tokens since the engine was made."""
        return self._core.scheduler.output_processor.num_generated_tokens

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of computed prompts since the engine was made."""
        return self._core.scheduler.output_processor.num_prompt_tokens

    def get_tokenizer(self) -> Any:
        """Returns the model's tokenizer as transformers has it, made at the first call."""
        return self._core.transformers_tokenizer

    def close(self) -> None:
        """Ends the execution thread; a second call does nothing."""
        with self._core.interrupts:
            self._requests.clear()
            self._core.close()
