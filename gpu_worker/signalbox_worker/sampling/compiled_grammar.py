"""A compiled structured output, and where one sequence stands in it and around it.

All sequences of a constraint share the compiled grammar, which llguidance lets grow while masks are
computed: its lexer adds states. When they are as many as may be, the grammar is compiled anew.
Where a sequence stands follows from its known tokens alone, and is caught up with when a mask is
asked for. So a sequence that resumes, forks or moves needs nothing more than its tokens. In the
free text around a constraint there is no matcher, and a token costs a look-up.
"""

import logging
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from signalbox_contract.structured_output.grammar import GrammarError
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.sequence_failures import STRUCTURED_OUTPUT
from signalbox_worker.sampling.token_constraints import Mask, make_mask

logger = logging.getLogger(__name__)

COMPILE_LIMIT_S = 30.0
"""Seconds that a step waits for a grammar which the scheduler did not have compiled before."""
MAX_MASK_CPU_S = 0.1
"""CPU time of one mask; a sequence whose mask takes more ends. llguidance's own limits stop most
masks after 20 to 80 ms, and a mask of a usual schema takes a tenth of a millisecond."""
_MAX_FORCED_NS = 2_000_000
"""Forced tokens are not asked of a grammar whose last mask took more CPU time."""
_TOO_MANY_STATES = "too many states"


class CompiledGrammar:
    """The matcher of a constraint before its first token; to be copied, never advanced."""

    __slots__ = ("_compile", "_cpu_ns", "_users", "matcher")

    def __init__(self, compile_anew: Callable[[], LLMatcher]) -> None:
        """Compiles. Raises GrammarError."""
        self._compile = compile_anew
        self._users: weakref.WeakSet[Grammar] = weakref.WeakSet()
        start_ns = time.thread_time_ns()
        self.matcher = compile_anew()
        self._cpu_ns = time.thread_time_ns() - start_ns

    def add_user(self, grammar: "Grammar") -> None:
        """Counts a sequence that goes on from a copy of the matcher."""
        self._users.add(grammar)

    def renew(self) -> bool:
        """Compiles anew, and lets go of all that has grown; False if that takes too long."""
        if self._cpu_ns > MAX_MASK_CPU_S * 1e9:
            return False
        self.matcher = self._compile()
        for grammar in self._users:
            grammar.begin_again()
        return True


class Grammar:
    """The state of one sequence in its constraint. Used only on the execution thread."""

    def __init__(
        self,
        compiled: "Future[CompiledGrammar] | None",
        scope: Scope = WHOLE,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        """Makes the state of a sequence without output; without a constraint if `compiled` is
        None."""
        self._compiled = compiled
        self._scope = scope
        self._begins_free = compiled is None or not scope.is_leading
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self.mask_ns = 0
        """CPU time of the last mask; 0 in free text, which needs no matcher."""
        self._has_matched = False
        self.begin_again()

    def fork(self) -> "Grammar":
        """Returns the state of a branch, which reads its own tokens from the first on."""
        return Grammar(
            self._compiled,
            self._scope,
            vocab_size=self._vocab_size,
            eos_token_ids=self._eos_token_ids,
        )

    def begin_again(self) -> None:
        """Drops the matcher; the output is read again when a mask is needed."""
        scope = self._scope
        self._matcher: LLMatcher | None = None
        self._num_consumed = 0
        self._is_free = scope.is_open or self._begins_free
        self._is_reasoning = scope.is_open
        self._is_met = False
        """True if a part has conformed that opens no reasoning."""
        self._num_reasoned = 0
        """Tokens of all reasoning so far."""
        self._left: LLMatcher | None = None
        """The matcher in whose state `ahead` began; None outside."""
        self._num_ahead = 0
        """Tokens that it has read since, to be rolled back."""

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Restores the state at the end of the block, in which drafts may be read."""
        left = self._left = self._matcher
        self._num_ahead = 0
        before = vars(self).copy()
        try:
            yield
        finally:
            num_ahead, is_renewed = self._num_ahead, self._left is not left
            vars(self).update(before)
            self._left = None
            if is_renewed or not (left is None or _roll_back(left, num_ahead)):
                self.begin_again()

    def num_admitted(self, output: Int32Array, num_drafts: int) -> int:
        """Returns how many of the drafts, with which the output ends, the grammar admits."""
        first = len(output) - num_drafts
        try:
            self._catch_up(output[:first])
            with self.ahead():
                for end in range(first, len(output)):
                    if not self._admits(int(output[end])):
                        return end - first
                    self._catch_up(output[: end + 1])
        except GrammarError:  # its mask will be refused
            return 0
        return num_drafts

    def mask(self, output: Int32Array) -> Mask | None:
        """Returns what may follow the output, as AllowedTokens holds it; None if anything may.

        Raises GrammarError if the output does not conform, the constraint does not compile, or the
        mask takes more CPU time than it may.
        """
        start_ns, self._has_matched = time.thread_time_ns(), False
        try:
            self._catch_up(output)
            mask = self._mask_of_free_text() if self._is_free else self._filled(output)
        finally:
            self.mask_ns = time.thread_time_ns() - start_ns if self._has_matched else 0
        if self.mask_ns > MAX_MASK_CPU_S * 1e9:
            raise GrammarError(
                f"{STRUCTURED_OUTPUT} takes more than {MAX_MASK_CPU_S * 1e3:g} ms for a token"
            )
        return mask

    def forced(self, output: Int32Array) -> list[int]:
        """Returns next tokens that are each the only one admitted; there may be more.

        Returns none for an output that does not conform; its mask will be refused.
        """
        if self.mask_ns > _MAX_FORCED_NS:
            return []
        try:
            self._catch_up(output)
        except GrammarError:
            self.begin_again()
            return []
        if self._is_free:
            ends = self._is_reasoning and self._is_spent
            return [*self._scope.closing_token_ids[:1]] if ends else []
        if not self._num_consumed and self._scope.opening_token_ids:
            return []
        matcher = self._begun()
        return [] if matcher.is_stopped() else matcher.compute_ff_tokens()

    @property
    def _is_spent(self) -> bool:
        most = self._scope.max_reasoning_tokens
        return most is not None and self._num_reasoned >= most

    def _mask_of_free_text(self) -> Mask | None:
        scope = self._scope
        if self._is_reasoning and self._is_spent:
            return make_mask(scope.closing_token_ids[:1], vocab_size=self._vocab_size)
        if not scope.is_required or self._is_met or self._compiled is None:
            return None
        return ~make_mask(self._eos_token_ids, vocab_size=self._vocab_size)

    def _filled(self, output: Int32Array) -> Mask:
        words = np.zeros((1, -(-self._vocab_size // 32)), dtype=np.int32)
        matcher = self._fill(words)
        if matcher.is_error() and _TOO_MANY_STATES in matcher.get_error():
            assert self._compiled is not None
            if self._compiled.result().renew():
                self._catch_up(output)
                matcher = self._fill(words)
        if matcher.is_error():
            raise GrammarError(f"{STRUCTURED_OUTPUT} is too complex for the next token")
        mask: Mask = words[0].view(np.uint32)
        also = self._eos_token_ids if matcher.is_accepting() or matcher.is_stopped() else ()
        if not self._num_consumed:
            also += self._scope.opening_token_ids
        for token_id in also:
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        header = self._scope.reasoning_token_ids
        if header and self._is_spent and output[-1:].tolist() == [header[0]]:
            mask &= ~make_mask(header[1:2], vocab_size=self._vocab_size)
        return mask

    def _fill(self, words: Int32Array) -> LLMatcher:
        matcher = self._begun()
        if not matcher.is_stopped():
            fill_next_token_bitmask(matcher, words)
        return matcher

    def _begun(self) -> LLMatcher:
        """Returns the matcher of the constraint that applies now."""
        self._has_matched = True
        if self._matcher is None:
            compiled = self._wait()
            self._matcher = compiled.matcher.deep_copy()
            compiled.add_user(self)
        return self._matcher

    def _catch_up(self, output: Int32Array) -> None:
        """Reads new tokens, up to the end of the sequence."""
        for token_id in output[self._num_consumed :].tolist():
            if self._is_free:
                self._read_free(token_id)
            elif not self._num_consumed and token_id in self._scope.opening_token_ids:
                self._is_free = self._is_reasoning = True
            else:
                self._match(token_id)
                if self._is_free:
                    self._is_reasoning = self._ends_header(output)
                    self._is_met |= bool(self._scope.reasoning_token_ids) and not self._is_reasoning
            self._num_consumed += 1

    def _ends_header(self, output: Int32Array) -> bool:
        """Returns whether reasoning begins behind the token that is read."""
        header, end = self._scope.reasoning_token_ids, self._num_consumed + 1
        return bool(header) and output[max(0, end - len(header)) : end].tolist() == [*header]

    def _read_free(self, token_id: int) -> None:
        scope = self._scope
        if token_id in scope.marker_token_ids and self._compiled is not None:
            self._is_free = self._is_reasoning = False
            self._match(token_id)
        elif not self._is_reasoning:
            self._is_reasoning = not self._num_consumed and token_id in scope.opening_token_ids
        elif token_id in scope.closing_token_ids:
            self._is_reasoning, self._is_free = False, self._begins_free
        else:
            self._num_reasoned += 1

    def _match(self, token_id: int) -> None:
        matcher = self._begun()
        is_read = not matcher.is_stopped()
        self._num_ahead += is_read and matcher is self._left
        if is_read and not matcher.consume_token(token_id):
            if _TOO_MANY_STATES not in matcher.get_error():  # otherwise `_filled` sees it, too
                raise GrammarError(f"token {token_id} does not conform to {STRUCTURED_OUTPUT}")
        elif self._scope.is_repeated and matcher.is_accepting():
            self._is_free, self._matcher = True, None

    def _admits(self, token_id: int) -> bool:
        if self._is_free or (not self._num_consumed and token_id in self._scope.opening_token_ids):
            return True
        matcher = self._begun()
        if matcher.is_stopped():
            return token_id in self._eos_token_ids
        return matcher.validate_tokens([token_id]) == 1

    def _wait(self) -> CompiledGrammar:
        assert self._compiled is not None
        wait([self._compiled], timeout=COMPILE_LIMIT_S)
        if not self._compiled.done():
            raise GrammarError(f"{STRUCTURED_OUTPUT} takes too long to compile")
        if (fault := fault_of(self._compiled)) is not None:
            raise GrammarError(f"{STRUCTURED_OUTPUT} cannot be compiled: {fault}")
        return self._compiled.result()


def _roll_back(matcher: LLMatcher, num_tokens: int) -> bool:
    """Rolls a matcher back. Returns False if that fails, after which it is unusable."""
    return not num_tokens or (matcher.rollback(num_tokens) and not matcher.is_error())


def fault_of(compiled: "Future[CompiledGrammar]") -> str | None:
    """Says why a compilation that has ended has failed; None if it has not."""
    error = compiled.exception()
    if error is None or isinstance(error, GrammarError):
        return None if error is None else str(error)
    # A panic of Rust's is no Exception; other sequences go on.
    logger.error("a structured output cannot be compiled", exc_info=error)
    return "the compiler has failed"
