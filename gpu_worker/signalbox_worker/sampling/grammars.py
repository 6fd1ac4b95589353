"""The compiled structured outputs that a worker keeps, within a bound in bytes.

The scheduler has a constraint compiled before a sequence of it is in a step (`prepare`), on a
thread of its own, and says what is to be forgotten. What a step brings that was not prepared is
compiled for it, and the step waits.
"""

import asyncio
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from signalbox_contract.model import ModelInfo
from signalbox_contract.step import NewSequence
from signalbox_contract.structured_output.grammar import GrammarError, compile_grammar
from signalbox_contract.structured_output.grammar_cost import (
    MAX_LEXER_STATES,
    UNMEASURED,
    GrammarCost,
)
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_worker.sampling.compiled_grammar import CompiledGrammar, Grammar, fault_of

MEMORY_BYTES = 1 << 30
"""Bytes of compiled grammars by the router's measurements; enough for a hundred usual ones."""
_NICENESS = 5
"""Niceness of the compiling thread, so that steps go first if cores are short."""

Constraint = tuple[str, ...]


class _Kept(NamedTuple):
    """A constraint that is compiled or being compiled, and its size in bytes."""

    compiled: "Future[CompiledGrammar]"
    num_bytes: int


class Grammars:
    """Compiles constraints for one model's tokenizer, and keeps the last of them.

    Args:
        memory_bytes: what those that are kept may count for together.
    """

    def __init__(
        self, model: ModelInfo, *, tokenizer_json: bytes, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self._model = model
        self._tokenizer_json = tokenizer_json
        self._tokenizer: LLTokenizer | None = None
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="grammar", initializer=_lower_priority
        )
        self._memory_bytes = memory_bytes
        self._kept: OrderedDict[Constraint, _Kept] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes that the kept grammars are counted with."""
        return self._num_bytes

    async def load(self) -> None:
        """Reads the tokenizer, which holds the interpreter's lock for seconds where it is large."""
        loading = asyncio.get_running_loop().run_in_executor(self._pool, self._make_tokenizer)
        with contextlib.suppress(GrammarError):  # said of each structured output
            self._tokenizer = await loading

    def prepare(
        self, constraint: Constraint, cost: GrammarCost = UNMEASURED
    ) -> "Future[CompiledGrammar]":
        """Starts to compile a constraint, or finds it; beyond the bound the oldest are forgotten.

        Safe from any thread.
        """
        with self._lock:
            kept = self._kept.get(constraint)
            if kept is None:
                compiled = self._pool.submit(CompiledGrammar, partial(self._compile, constraint))
                kept = self._kept[constraint] = _Kept(compiled, cost.held_bytes)
                self._num_bytes += kept.num_bytes
                while self._num_bytes > self._memory_bytes and len(self._kept) > 1:
                    self._forget(next(iter(self._kept)))
            self._kept.move_to_end(constraint)
        return kept.compiled

    async def prepared(
        self, constraint: Constraint, cost: GrammarCost, *, forgotten: Iterable[Constraint] = ()
    ) -> str | None:
        """Forgets some constraints, waits until one is compiled; returns its fault, if any."""
        self.forget(forgotten)
        compiled = self.prepare(constraint, cost)
        waiting = asyncio.wrap_future(compiled)
        await asyncio.wait([waiting])  # to cancel this does not cancel what others wait for
        waiting.exception()
        if (fault := fault_of(compiled)) is not None:
            self.forget([constraint])
        return fault

    def prepare_new(self, sequences: Iterable[NewSequence]) -> None:
        """Starts to compile the constraints of new sequences. Safe from any thread."""
        for new in sequences:
            if new.params.structured_output is not None:
                self.prepare(new.params.structured_output, new.params.grammar_cost)

    def forget(self, constraints: Iterable[Constraint] | None = None) -> None:
        """Forgets constraints, by default all; sequences keep theirs until they end."""
        with self._lock:
            for constraint in list(self._kept) if constraints is None else constraints:
                self._forget(constraint)

    def grammar(
        self,
        constraint: Constraint | None,
        cost: GrammarCost = UNMEASURED,
        scope: Scope = WHOLE,
    ) -> Grammar:
        """Returns the state of a sequence that has no output yet.

        Args:
            constraint: None only bounds the reasoning.
        """
        return Grammar(
            None if constraint is None else self.prepare(constraint, cost),
            scope,
            vocab_size=self._model.vocab_size,
            eos_token_ids=self._model.eos_token_ids,
        )

    def close(self) -> None:
        """Ends the thread after the compilation that it is in."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, constraint: Constraint) -> None:
        kept = self._kept.pop(constraint, None)
        if kept is not None:
            self._num_bytes -= kept.num_bytes

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if self._tokenizer is None:
            self._tokenizer = self._make_tokenizer()
        return compile_grammar(constraint, self._tokenizer, max_lexer_states=MAX_LEXER_STATES)

    def _make_tokenizer(self) -> LLTokenizer:
        try:
            return LLTokenizer(
                self._tokenizer_json.decode(),
                n_vocab=self._model.vocab_size,
                eos_token=list(self._model.eos_token_ids),
            )
        except ValueError as error:
            raise GrammarError(f"the model's tokenizer cannot be read: {error}") from None


def _lower_priority() -> None:
    with contextlib.suppress(OSError):  # not everywhere may a thread have a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
