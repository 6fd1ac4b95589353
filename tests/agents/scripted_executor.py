"""An executor that draws the tokens of a script, with a tokenizer of bytes and special tokens.

Each slot of its KV holds the token that was written there, so what a sequence has said is read back
through its block table: a worker that takes a request over goes on with the same text.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.store_threads import no_store
from signalbox_worker.runner.loading.byte_tokenizer import SPECIAL_TOKENS, tokenizer_files
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.simulated.hashing import UInt64Array
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_draws import allowed_tokens, made_up_logprobs
from signalbox_worker.runner.simulated.simulated_executor import SimulatedExecutor
from signalbox_worker.runner.simulated.simulated_runner import SimulatedModel

WINDOW = 262_144
NOT_ALLOWED = "the script names a token that may not be drawn"

Script = Callable[[str], str]
"""Returns the answer to a prompt, both with the texts of special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the tests need of a model family: its chat template and the tokens that it uses."""

    template: str
    opening: str
    """Text that opens an answer in the template; it begins with a special token."""
    end: str
    """Token that ends an answer."""
    tokens: tuple[str, ...]
    """Special tokens, `end` among them."""
    plain_tokens: tuple[str, ...] = ()
    """Tokens that are no special ones, as the markers of calls in many families."""


class FamilyTokens:
    """Token ids of a family: the bytes, then the simulated model's tokens, then the family's."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.names = (*SPECIAL_TOKENS, *family.tokens, *family.plain_tokens)
        self.names = tuple(dict.fromkeys(self.names))
        self._ids = {name: 256 + i for i, name in enumerate(self.names)}
        self._any = re.compile(f"({'|'.join(map(re.escape, self.names))})")
        self.vocab_size = 256 + len(self.names)
        self.end = self._ids[family.end]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._any.split(text):
            ids += [self._ids[part]] if part in self._ids else part.encode()
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        texts = (
            self.names[one - 256].encode() if one >= 256 else bytes([one]) for one in token_ids
        )
        return b"".join(texts).decode(errors="replace")

    @cached_property
    def files(self) -> dict[str, bytes]:
        """tokenizer.json and tokenizer_config.json."""
        files = tokenizer_files(vocab_size=256 + len(SPECIAL_TOKENS), max_model_len=WINDOW)
        tokenizer: dict[str, Any] = json.loads(files["tokenizer.json"])
        for name in self.names[len(SPECIAL_TOKENS) :]:
            tokenizer["model"]["vocab"][name] = self._ids[name]
            is_special = name not in self.family.plain_tokens
            like = tokenizer["added_tokens"][0]
            added = {**like, "id": self._ids[name], "content": name, "special": is_special}
            tokenizer["added_tokens"].append(added)
        config: dict[str, Any] = json.loads(files["tokenizer_config.json"])
        config |= {"chat_template": self.family.template, "eos_token": self.family.end}
        return {
            "tokenizer.json": json.dumps(tokenizer).encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }


class ScriptedExecutor(SimulatedExecutor):
    """Draws what a script answers to the text before the last opening of an answer."""

    def __init__(self, config: SimulatedConfig, tokens: FamilyTokens, script: Script) -> None:
        super().__init__(config)
        self._tokens, self._script = tokens, script
        self._opening = np.array(tokens.encode(tokens.family.opening), dtype=np.uint64)
        self._answers: dict[bytes, list[int]] = {}
        self.num_drawn = 0

    def _write(self, batch: Batch) -> None:
        self.gpu_kv.reshape(-1)[batch.slot_mapping] = batch.token_ids

    def _draw(self, batch: Batch, sums: UInt64Array) -> BatchOutput:
        drawn = np.array([self._next(one) for one in self._contexts(batch)], dtype=np.int32)
        self.num_drawn += len(drawn)
        allowed = allowed_tokens(batch.rows, self.config.vocab_size)
        refused = np.flatnonzero(~allowed[np.arange(len(drawn)), drawn])
        failed = dict.fromkeys(refused.tolist(), NOT_ALLOWED)
        size = self.config.vocab_size
        logprobs = [
            made_up_logprobs(row, best=int(drawn[row]), token=int(drawn[row]), num=num, size=size)
            for row, num in enumerate(batch.rows.num_logprobs.tolist())
            if num >= 0 and row not in failed
        ]
        return BatchOutput(token_ids=drawn, logprobs=logprobs, failed=failed)

    def _contexts(self, batch: Batch) -> Iterator[UInt64Array]:
        """Yields the tokens that each row follows."""
        index = batch.rows.token_index
        owners = np.searchsorted(batch.query_start, index, side="right") - 1
        for owner, length in zip(owners, batch.positions[index] + 1, strict=True):
            num_blocks = -(-int(length) // self.config.block_size)
            yield self.gpu_kv[batch.block_tables[owner, :num_blocks]].reshape(-1)[:length]

    def _next(self, context: UInt64Array) -> int:
        starts = np.flatnonzero(context == self._opening[0])[::-1]
        size = len(self._opening)
        ends = (i + size for i in starts if np.array_equal(context[i : i + size], self._opening))
        end = next(ends, None)
        if end is None:  # no prompt: the worker tries whether it computes at all
            return self._tokens.end
        prompt = context[:end]
        key = prompt.tobytes()
        if key not in self._answers:
            answer = self._script(self._tokens.decode(prompt.tolist()))
            self._answers[key] = [*self._tokens.encode(answer), self._tokens.end]
        said = self._answers[key]
        num_said = len(context) - end
        return said[num_said] if num_said < len(said) else self._tokens.end


class _ScriptedModel(SimulatedModel):
    def __init__(self, executor: ScriptedExecutor, tokens: FamilyTokens) -> None:
        super().__init__(executor)
        self.model = replace(self.model, eos_token_ids=(tokens.end,))
        self._files = tokens.files

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._files


class ScriptedRunner(LocalRunner):
    executor: ScriptedExecutor


def make_scripted_runner(family: Family, script: Script, **settings: Any) -> ScriptedRunner:
    """Returns the runner of a model of `family` that answers as `script` says."""
    tokens = FamilyTokens(family)
    given = {"max_model_len": WINDOW, "num_gpu_blocks": 3 * WINDOW // 16, "name": "scripted"}
    config = SimulatedConfig(vocab_size=tokens.vocab_size, **{**given, **settings})
    executor = ScriptedExecutor(config, tokens, script)
    return ScriptedRunner(executor, _ScriptedModel(executor, tokens), PoolTransfers(no_store()))
