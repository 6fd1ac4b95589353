"""Which tokens a structured output lets a sequence draw next, by llguidance.

A constraint is compiled once, on a thread of its own that starts as soon as its step arrives; each
sequence has a copy of what comes out. Where a sequence stands follows from its known tokens alone,
and is caught up with when a mask is asked for. So a sequence that resumes, forks or moves needs
nothing more than its tokens, and the next step waits for no scheduler.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

from gpu_worker.runner_protocols import ModelInfo
from gpu_worker.sampling.sample_rows import Int32Array
from gpu_worker.sampling.token_rules import Mask
from gpu_worker.step import NewSequence
from rpc.grammar import GrammarError, compile_grammar

logger = logging.getLogger(__name__)

COMPILE_LIMIT_S = 30.0
"""On a machine that is busy; the router has let in only what takes a few seconds of CPU time."""
_MAX_COMPILED = 64

Constraint = tuple[str, ...]


class Grammars:
    """Compiles constraints for one model's tokenizer, and keeps the last of them."""

    def __init__(self, model: ModelInfo, *, tokenizer_json: bytes) -> None:
        self._model = model
        self._tokenizer_json = tokenizer_json
        self._tokenizer: LLTokenizer | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiled: OrderedDict[Constraint, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, sequences: Iterable[NewSequence]) -> None:
        """Starts to compile what new sequences ask for. Safe from any thread."""
        for new in sequences:
            if new.params.structured_output is not None:
                self._start(new.params.structured_output)

    def grammar(self, constraint: Constraint) -> "Grammar":
        """Returns the state of a sequence that has no output yet."""
        return Grammar(
            self._start(constraint),
            vocab_size=self._model.vocab_size,
            eos_token_ids=self._model.eos_token_ids,
        )

    def close(self) -> None:
        """Lets the thread end after what it compiles."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, constraint: Constraint) -> "Future[LLMatcher]":
        with self._lock:
            future = self._compiled.get(constraint)
            if future is None:
                future = self._pool.submit(self._compile, constraint)
                self._compiled[constraint] = future
                while len(self._compiled) > _MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(constraint)
        return future

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        return compile_grammar(constraint, self._tokenizer)

    def _make_tokenizer(self) -> LLTokenizer:
        try:
            return LLTokenizer(
                self._tokenizer_json.decode(),
                n_vocab=self._model.vocab_size,
                eos_token=list(self._model.eos_token_ids),
            )
        except ValueError as error:
            raise GrammarError(f"the model's tokenizer cannot be read: {error}") from None


class Grammar:
    """Where one sequence stands in its constraint. Used on the execution thread alone."""

    def __init__(
        self, compiled: "Future[LLMatcher]", *, vocab_size: int, eos_token_ids: tuple[int, ...]
    ) -> None:
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._matcher: LLMatcher | None = None
        self._num_consumed = 0

    def fork(self) -> "Grammar":
        """Returns the state of a branch, which reads its own tokens from the first on."""
        return Grammar(
            self._compiled, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids
        )

    def mask(self, output: Int32Array) -> Mask:
        """Returns what may follow the output, as AllowedTokens holds it.

        Raises GrammarError if the output does not conform, or the constraint does not compile.
        """
        matcher = self._caught_up(output)
        words = np.zeros((1, -(-self._vocab_size // 32)), dtype=np.int32)
        if not matcher.is_stopped():
            fill_next_token_bitmask(matcher, words)
        if matcher.is_error():
            raise GrammarError("its structured output is too complex for the next token")
        mask: Mask = words[0].view(np.uint32)
        if matcher.is_accepting() or matcher.is_stopped():
            for token_id in self._eos_token_ids:
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return mask

    def _caught_up(self, output: Int32Array) -> LLMatcher:
        """Lets the matcher read what it has not; past the end of a sequence it reads nothing."""
        if self._matcher is None:
            self._matcher = self._wait().deep_copy()
        matcher = self._matcher
        for token_id in output[self._num_consumed :].tolist():
            if not matcher.is_stopped() and not matcher.consume_token(token_id):
                raise GrammarError(f"token {token_id} does not conform to its structured output")
        self._num_consumed = len(output)
        return matcher

    def _wait(self) -> LLMatcher:
        try:
            return self._compiled.result(timeout=COMPILE_LIMIT_S)
        except TimeoutError:
            raise GrammarError("its structured output takes too long to compile") from None
        except GrammarError as error:
            raise GrammarError(f"its structured output cannot be compiled: {error}") from None
        except BaseException:  # a panic of Rust's is no Exception; the other sequences go on
            logger.exception("a structured output cannot be compiled")
            raise GrammarError("its structured output cannot be compiled") from None
