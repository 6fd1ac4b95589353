"""What clients saw, and whether it may be: the checker of every run with faults.

After Jepsen: clients record, the checker knows nothing of the system but its promise. An accepted
request ends exactly once, its tokens are contiguous, and they are those of an undisturbed run.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from signalbox_protos.inference.v1 import inference_pb2 as pb

LOST_WORKERS_ALLOWED = 3
"""A request that was on so many lost workers ends: it may be the cause."""
AFTERMATH_S = 15.0
"""What happens so long after a fault may be its doing."""


class FaultKind(enum.Enum):
    WORKER = "worker"
    SCHEDULER = "scheduler"
    ROUTER = "router"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, its service, and its time; in seconds of one monotonic clock, as all times here."""

    kind: FaultKind
    name: str
    began: float
    ended: float
    recovered_s: float = 0.0
    """From the beginning to the next request that began and ended well."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One request as its client saw it."""

    shape: str
    began: float
    ended: float | None = None
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    logprobs: dict[int, list[pb.TokenLogprobs]] = field(default_factory=dict)
    vectors: list[list[float]] = field(default_factory=list)
    num_drafts: int = 0
    num_accepted: int = 0
    num_usages: int = 0
    num_messages: int = 0
    code: grpc.StatusCode | None = None
    message: str = ""
    has_left: bool = False
    """The client cancelled it."""
    wrong: list[str] = field(default_factory=list)

    def add(self, response: pb.GenerateResponse) -> None:
        """Takes one message, and notes what must not come."""
        self.num_messages += 1
        if self.num_usages:
            self.wrong.append("a message after the last")
        for delta in response.outputs:
            if delta.index in self.finish:
                self.wrong.append(f"output {delta.index} goes on after its end")
            self.token_ids.setdefault(delta.index, []).extend(delta.token_ids)
            self.text[delta.index] = self.text.get(delta.index, "") + delta.text
            self.logprobs.setdefault(delta.index, []).extend(delta.logprobs)
            if delta.HasField("finish"):
                self.finish[delta.index] = delta.finish.reason
        self.num_usages += response.HasField("usage")
        use = response.usage.speculation
        self.num_drafts, self.num_accepted = use.num_drafts, use.num_accepted

    def add_vectors(self, response: pb.EmbedResponse) -> None:
        """Takes the one message of a request for vectors."""
        self.num_messages += 1
        self.num_usages += response.HasField("usage")
        self.vectors = [list(embedding.values) for embedding in response.embeddings]

    def end(self, code: grpc.StatusCode, message: str, now: float) -> None:
        if self.ended is not None:
            self.wrong.append("it ended twice")
        self.code, self.message, self.ended = code, message, now

    @property
    def is_ok(self) -> bool:
        return self.code is grpc.StatusCode.OK


def check(
    records: Sequence[Record], *, undisturbed: Mapping[str, Record], faults: Sequence[Fault]
) -> list[str]:
    """Returns what must not have happened, a line each."""
    found = []
    for number, record in enumerate(records):
        reasons = [*record.wrong, *_endings(record, faults)]
        reasons += _differences(record, undisturbed[record.shape])
        found += [f"request {number} ({record.shape}): {reason}" for reason in reasons]
    return found


def _endings(record: Record, faults: Sequence[Fault]) -> list[str]:
    if record.ended is None:
        return ["it never ended"]
    if record.is_ok:
        return [] if record.num_usages == 1 else ["it ended well without its last message"]
    if record.has_left and record.code is grpc.StatusCode.CANCELLED:
        return []
    if _is_excused(record, faults):
        return []
    return [f"{record.code} after {record.num_messages} messages: {record.message}"]


def _is_excused(record: Record, faults: Sequence[Fault]) -> bool:
    """Says whether the promise has an exception for this end."""
    assert record.ended is not None
    near = [f for f in faults if f.began <= record.ended and record.began <= f.ended + AFTERMATH_S]
    of_workers = sum(fault.kind is FaultKind.WORKER for fault in near)
    if record.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return not record.num_messages
    if record.code is grpc.StatusCode.UNAVAILABLE:
        is_lost_with_router = any(fault.kind is FaultKind.ROUTER for fault in near)
        return is_lost_with_router or (bool(near) and not record.num_messages)
    return "workers were lost" in record.message and of_workers >= LOST_WORKERS_ALLOWED


def _differences(record: Record, expected: Record) -> list[str]:
    """Compares all that came with the undisturbed run; what ended well must be whole."""
    found = []
    for index, token_ids in record.token_ids.items():
        whole = expected.token_ids.get(index, [])
        if token_ids != whole[: len(token_ids)]:
            at = next((i for i, t in enumerate(token_ids) if whole[i : i + 1] != [t]), 0)
            found.append(f"output {index} differs from the undisturbed one at token {at}")
        if not expected.text.get(index, "").startswith(record.text[index]):
            found.append(f"the text of output {index} differs from the undisturbed one")
        logprobs = record.logprobs[index]
        if logprobs != expected.logprobs.get(index, [])[: len(logprobs)]:
            found.append(f"the log probabilities of output {index} differ")
    if record.is_ok:
        found += [
            f"its {name} are not the undisturbed ones"
            for name in ("token_ids", "text", "logprobs", "finish", "vectors")
            if getattr(record, name) != getattr(expected, name)
        ]
    return found
