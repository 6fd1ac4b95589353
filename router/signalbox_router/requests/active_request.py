"""The state of one generation: the buffer between the scheduler's stream and the client's.

The task that reads the scheduler's stream adds tokens, and the client's RPC task takes them. All
tokens since the last read become one delta for each sequence, so a slow client gets fewer, larger
messages; a request with too many unread tokens is aborted. All tokens are kept, so that the request
can continue on another scheduler if its own is lost.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple, Protocol

from signalbox_contract.errors import Internal, ResourceExhausted, RpcError, Unavailable
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.pooling import PoolingParams, Vector
from signalbox_contract.request import DeliveredSequence
from signalbox_router.limits.payers import ANYONE, Payer
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.best_of import BestOf
from signalbox_router.requests.output_sequence import OutputSequence, make_branches
from signalbox_router.requests.prefix_watch import PrefixWatch
from signalbox_router.requests.request_output import (
    Delta,
    Echo,
    End,
    Finish,
    FinishReason,
    reason_of,
)

RETRY_S = 1.0


class SchedulerHandle(Protocol):
    """Messages to the scheduler about a request; they do nothing if it has ended."""

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None: ...

    def abort(self, handle: int) -> None: ...


class Update(NamedTuple):
    """Content of one message to the client."""

    request: "ActiveRequest"
    deltas: list[Delta]
    end: End | None
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each token of the prompt but the first; only in the first updates."""
    position: int = 0
    """Position of the request's prompt among those of one HTTP request."""


@dataclass(eq=False, kw_only=True)
class ActiveRequest:
    """One request that a scheduler works on; lives as long as its RPC."""

    handle: int
    request_id: str
    prompt_token_ids: list[int]
    prompt_field: str = "prompt"
    """Name of the prompt's field in the client's API, for error messages."""
    params: GenerationParams
    tokenizer: Tokenizer
    tenant: str = ""
    payer: Payer = ANYONE
    priority: int = 0
    cache_salt: str = ""
    pooling: PoolingParams | None = None
    """Pooling of the prompt; None continues it."""
    adapter: str = ""
    """SHA-256 of the adapter that computes the request; empty is the base model."""
    prewarm: bool = False
    """True if the prompt is computed and no token drawn."""
    snapshot_positions: tuple[int, ...] = ()
    """Positions of the prompt from which later requests are likely to go on."""
    session: bytes = b""
    """Hash of the session that the client names; empty if it names none."""
    keep_ns: int = 0
    """Time for which the client asks that the prompt's prefix be kept; 0 if it asks for none."""
    trace_context: tuple[str, str] = ("", "")
    """W3C traceparent and tracestate."""
    model_wait_ns: int = 0
    """Time that it has waited until its model was loaded."""
    echo: Echo | None = None
    """The prompt that each sequence's first delta begins with, if it is echoed."""
    scheduler: InitVar[SchedulerHandle]
    arrived_ns: InitVar[int]
    timeout_ns: InitVar[int | None] = None
    max_unread_tokens: InitVar[int]
    kept_token_ids: InitVar[frozenset[int]] = frozenset()
    """Special tokens that the text always shows."""
    attempt: int = field(default=0, init=False)
    """Number of schedulers that the request was sent to and that were lost."""
    nonce: int = field(default_factory=lambda: secrets.randbits(64), init=False)
    """Random id, the same in every attempt."""
    watch: PrefixWatch | None = field(default=None, init=False)
    """Comparison with an earlier prompt; None if the request has no session and asks for none."""
    vector: Vector | None = field(default=None, init=False)
    """Vector of a prompt that was pooled, before the model's last function."""
    num_prompt_logprobs: int = field(default=0, init=False)
    """Positions of the prompt whose log probabilities have arrived."""
    time_to_first_token_ns: int | None = field(default=None, init=False)
    time_to_last_token_ns: int = field(default=0, init=False)
    """Nanoseconds from arrival until the last token so far was sent to the client."""

    def __post_init__(
        self,
        scheduler: SchedulerHandle,
        arrived_ns: int,
        timeout_ns: int | None,
        max_unread_tokens: int,
        kept_token_ids: frozenset[int],
    ) -> None:
        self._scheduler = scheduler
        self._arrived_ns = arrived_ns
        self._created_ns = time.monotonic_ns()
        self._timeout_ns = timeout_ns
        self._repeated: list[int] = []  # that a restarted search sends again; not for the client
        self._branches = make_branches(
            self.params,
            prompt_token_ids=self.prompt_token_ids,
            tokenizer=self.tokenizer,
            kept_token_ids=kept_token_ids,
        )
        self._best_of = BestOf(self.params) if self.params.is_ranked else None
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._touched: dict[int, OutputSequence] = {}
        self._max_unread = max_unread_tokens
        self._token_cost = 1 + (self.params.sampling.num_logprobs or 0)
        self._unread = 0
        self._longest = 0
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._end: End | None = None
        self._error: RpcError | None = None

    @property
    def num_needed_tokens(self) -> int:
        """Tokens of the shortest window that can hold a sequence of the request."""
        if self.pooling is not None:
            return len(self.prompt_token_ids)
        params = self.params
        most = 1 if params.max_tokens_is_default else params.max_tokens
        return len(self.prompt_token_ids) + most

    def admit(self, *, max_tokens: int) -> None:
        """Applies a max_tokens that the scheduler has lowered for its window."""
        self.params = replace(self.params, max_tokens=max_tokens, max_tokens_is_default=False)

    def add_tokens(self, index: int, token_ids: list[int], logprobs: list[TokenLogprobs]) -> None:
        """Adds one sequence's new tokens; aborts the request if too many are unread."""
        if self._repeated and index == 0:
            num_repeated = min(len(token_ids), len(self._repeated))
            if token_ids[:num_repeated] != self._repeated[:num_repeated]:
                self._abort(
                    Unavailable("the beam search began again and found other tokens", RETRY_S)
                )
                return
            del self._repeated[:num_repeated]
            token_ids = token_ids[num_repeated:]
        self._branches[index].add(token_ids, logprobs)
        self._touch(index)
        self._unread += len(token_ids) * self._token_cost
        if self._unread > self._max_unread:
            self._abort(ResourceExhausted("the client does not read what was generated for it"))

    def add_vector(self, vector: Vector) -> None:
        """Adds what the prompt was pooled to; the request's end follows."""
        self.vector = vector

    def add_prompt_logprobs(self, first_position: int, logprobs: list[TokenLogprobs]) -> None:
        """Adds log probabilities of a part of the prompt; all of them come before the first
        token."""
        first_new = self.num_prompt_logprobs + 1
        if first_position <= first_new:
            new = logprobs[first_new - first_position : len(self.prompt_token_ids) - first_position]
            self._prompt_logprobs += new
            self.num_prompt_logprobs += len(new)

    def end_sequence(self, index: int, finish: Finish) -> None:
        """Ends a sequence; its last tokens were added before."""
        if finish.reason is FinishReason.ERROR and self.params.num_sequences == 1:
            return  # the request itself ends with an error status
        self._branches[index].end(finish)
        self._touch(index)

    # Continuing on another scheduler

    @property
    def age_ns(self) -> int:
        """Nanoseconds since the request was created."""
        return time.monotonic_ns() - self._created_ns

    @property
    def remaining_ns(self) -> int | None:
        """Nanoseconds left, at least one; None is unlimited."""
        return None if self._timeout_ns is None else max(1, self._timeout_ns - self.age_ns)

    @property
    def answer_token_ids(self) -> list[int]:
        """Tokens of the only sequence; none if there were several to choose from."""
        return self._branches[0].token_ids if len(self._branches) == 1 else []

    @property
    def num_generated_tokens(self) -> int:
        return sum(len(branch.token_ids) for branch in self._branches)

    @property
    def is_complete(self) -> bool:
        """True if all sequences have ended, so that no scheduler is needed any more."""
        if self.pooling is not None:
            return self.vector is not None
        return all(branch.finished or branch.ended for branch in self._branches)

    @property
    def delivered(self) -> tuple[DeliveredSequence, ...]:
        """Output of each sequence so far; empty if there is none, or if a beam search restarts."""
        if self.params.beam_search is not None or not self.num_generated_tokens:
            return ()
        return tuple(
            DeliveredSequence(one.token_ids, reason_of(one.finished or one.ended))
            for one in self._branches
        )

    def begin_again(self) -> None:
        """Starts another attempt; a beam search will send its tokens again."""
        self.attempt += 1
        if self.params.beam_search is not None:
            self._repeated = list(self._branches[0].token_ids)

    def end(self, end: End) -> None:
        """Ends the request successfully."""
        self._end = end
        self.wake()

    def fail(self, error: RpcError) -> None:
        """Ends the request by an error; unread output is dropped."""
        self._error = self._error or error
        self._longest = self.longest
        self._touched.clear()
        self._branches.clear()
        self.wake()

    def _abort(self, error: RpcError) -> None:
        self.fail(error)
        self._scheduler.abort(self.handle)

    def release(self) -> None:
        """Gives back what the scheduler holds for the request, if it has not ended."""
        self._scheduler.abort(self.handle)

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that were read."""
        return max((branch.num_tokens for branch in self._branches), default=self._longest)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason of the first sequence as sent to the client; None before it is."""
        finished = self._branches[0].finished if self._branches else None
        return finished.reason if finished is not None else None

    async def next_update(self) -> Update:
        """Waits for new output and returns it; for a single reader, until an update has an
        `end`.

        Raises the error of a failed request. It is not a generator, because a generator is resumed
        twice for each update.
        """
        while True:
            await self.wait()
            if self._error is not None:
                raise self._error
            deltas = self.read()
            if deltas or self._end is not None:
                return Update(self, deltas, self._finish(), self.pop_prompt_logprobs())

    async def wait(self) -> None:
        """Waits until something has happened since the last wait; for a single reader."""
        if not self._has_news:
            # An Event costs twice as much, and there is only one reader.
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._has_news = False

    def _touch(self, index: int) -> None:
        self._touched[index] = self._branches[index]
        if not self._has_news:
            self.wake()

    def wake(self) -> None:
        """Ends the reader's wait."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def pop_prompt_logprobs(self) -> list[TokenLogprobs]:
        """Removes and returns the log probabilities of the prompt that have arrived."""
        popped, self._prompt_logprobs = self._prompt_logprobs, []
        return popped

    def read(self) -> list[Delta]:
        """Returns the new output of the sequences, as text; ends those with a stop string."""
        touched, self._touched = self._touched, {}
        self._unread = 0
        deltas = []
        for branch in touched.values():
            delta = branch.read()
            if delta is None:
                continue
            deltas.append(delta)
            if delta.finish is not None and branch.ended is None:  # by a stop string
                self._scheduler.stop_sequence(
                    self.handle, index=branch.index, keep_tokens=branch.num_tokens
                )
        if self._best_of is not None:
            deltas = self._best_of.add(deltas, is_last=self._end is not None)
        if any(delta.token_ids for delta in deltas):
            self.time_to_last_token_ns = time.monotonic_ns() - self._arrived_ns
            if self.time_to_first_token_ns is None:
                self.time_to_first_token_ns = self.time_to_last_token_ns
        return deltas

    def _finish(self) -> End | None:
        """Returns the end, with the tokens of all sequences counted as they were read."""
        if self._end is None:
            return None
        if self.pooling is not None and self.vector is None:
            raise Internal("the scheduler has ended the request without its vector")
        if not all(branch.finished for branch in self._branches):
            raise Internal("the scheduler has ended the request before all of its sequences")
        num_tokens = sum(branch.num_tokens for branch in self._branches)
        return self._end._replace(
            usage=self._end.usage._replace(completion_tokens=num_tokens),
            time_to_first_token_ns=self.time_to_first_token_ns,
        )
