"""A compiled structured output, and where one sequence stands in it.

All sequences of a constraint share the compiled grammar, which llguidance lets grow while masks are
computed: its lexer adds states. When they are as many as may be, the grammar is compiled anew.
Where a sequence stands follows from its known tokens alone, and is caught up with when a mask is
asked for. So a sequence that resumes, forks or moves needs nothing more than its tokens.
"""

import logging
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from signalbox_contract.structured_output.grammar import GrammarError
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.sequence_failures import STRUCTURED_OUTPUT
from signalbox_worker.sampling.token_constraints import Mask

logger = logging.getLogger(__name__)

COMPILE_LIMIT_S = 30.0
"""Seconds that a step waits for a grammar which the scheduler did not have compiled before."""
MAX_MASK_CPU_S = 0.1
"""CPU time of one mask; a sequence whose mask takes more ends. llguidance's own limits stop most
masks after 20 to 80 ms, and a mask of a usual schema takes a tenth of a millisecond."""
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
        compiled: "Future[CompiledGrammar]",
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._matcher: LLMatcher | None = None
        self._num_consumed = 0
        self.mask_ns = 0
        """CPU time of the last mask."""

    def fork(self) -> "Grammar":
        """Returns the state of a branch, which reads its own tokens from the first on."""
        return Grammar(
            self._compiled, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
        )

    def begin_again(self) -> None:
        """Drops the matcher; the output is read again when a mask is needed."""
        self._matcher, self._num_consumed = None, 0

    def mask(self, output: Int32Array) -> Mask:
        """Returns what may follow the output, as AllowedTokens holds it.

        Raises GrammarError if the output does not conform, the constraint does not compile, or the
        mask takes more CPU time than it may.
        """
        compiled = self._wait()
        start_ns = time.thread_time_ns()
        try:
            mask = self._filled(compiled, output)
        finally:
            self.mask_ns = time.thread_time_ns() - start_ns
        if self.mask_ns > MAX_MASK_CPU_S * 1e9:
            raise GrammarError(
                f"{STRUCTURED_OUTPUT} takes more than {MAX_MASK_CPU_S * 1e3:g} ms for a token"
            )
        return mask

    def _filled(self, compiled: CompiledGrammar, output: Int32Array) -> Mask:
        words = np.zeros((1, -(-self._vocab_size // 32)), dtype=np.int32)
        matcher = self._caught_up(compiled, output)
        self._fill(matcher, words)
        if matcher.is_error() and _TOO_MANY_STATES in matcher.get_error() and compiled.renew():
            matcher = self._caught_up(compiled, output)
            self._fill(matcher, words)
        if matcher.is_error():
            raise GrammarError(f"{STRUCTURED_OUTPUT} is too complex for the next token")
        mask: Mask = words[0].view(np.uint32)
        if matcher.is_accepting() or matcher.is_stopped():
            for token_id in self._eos_token_ids:
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return mask

    @staticmethod
    def _fill(matcher: LLMatcher, words: Int32Array) -> None:
        if not matcher.is_stopped():
            fill_next_token_bitmask(matcher, words)

    def _caught_up(self, compiled: CompiledGrammar, output: Int32Array) -> LLMatcher:
        """Passes new tokens to the matcher, up to the end of the sequence."""
        if self._matcher is None:
            self._matcher = compiled.matcher.deep_copy()
            compiled.add_user(self)
        matcher = self._matcher
        for token_id in output[self._num_consumed :].tolist():
            if not matcher.is_stopped() and not matcher.consume_token(token_id):
                if _TOO_MANY_STATES in matcher.get_error():
                    break  # `_filled` sees it too
                raise GrammarError(f"token {token_id} does not conform to {STRUCTURED_OUTPUT}")
        self._num_consumed = len(output)
        return matcher

    def _wait(self) -> CompiledGrammar:
        wait([self._compiled], timeout=COMPILE_LIMIT_S)
        if not self._compiled.done():
            raise GrammarError(f"{STRUCTURED_OUTPUT} takes too long to compile")
        if (fault := fault_of(self._compiled)) is not None:
            raise GrammarError(f"{STRUCTURED_OUTPUT} cannot be compiled: {fault}")
        return self._compiled.result()


def fault_of(compiled: "Future[CompiledGrammar]") -> str | None:
    """Says why a compilation that has ended has failed; None if it has not."""
    error = compiled.exception()
    if error is None or isinstance(error, GrammarError):
        return None if error is None else str(error)
    # A panic of Rust's is no Exception; other sequences go on.
    logger.error("a structured output cannot be compiled", exc_info=error)
    return "the compiler has failed"
