"""The sessions that clients name, such as agents', as far as their requests come to this scheduler.

They are shown to operators, and decide nothing. A session is named by a hash, and no text or token
of it is kept.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_contract.request import SessionPause
from signalbox_scheduler.requests.sequence_group import SequenceGroup

MAX_SESSIONS = 1024
"""Sessions that are known; those not used for the longest time are forgotten."""
MIN_LOST_TOKENS = 32
"""Fewest tokens that count as lost: a cache has no parts of blocks, nor a prompt's last token."""


@dataclass(slots=True, kw_only=True)
class TurnTokens:
    """Tokens of one turn, or sums over several. Tokens of a prompt are found in at most one
    place."""

    num_prompt_tokens: int = 0
    num_device_tokens: int = 0
    """Found in blocks of the worker's device."""
    num_cpu_tokens: int = 0
    """Found in its CPU pool."""
    num_store_tokens: int = 0
    """Fetched from a store, or from another worker."""
    num_output_tokens: int = 0

    @classmethod
    def of(cls, group: SequenceGroup) -> "TurnTokens":
        """Returns the tokens of a request that has ended. What is fetched arrives in the CPU
        pool, so the three places are counted from the farthest."""
        num_on_cpu = min(group.num_cached_on_cpu, group.num_cached_tokens)
        num_fetched = min(group.num_fetched_tokens, num_on_cpu)
        return cls(
            num_prompt_tokens=group.num_prompt_tokens,
            num_device_tokens=group.num_cached_tokens - num_on_cpu,
            num_cpu_tokens=num_on_cpu - num_fetched,
            num_store_tokens=num_fetched,
            num_output_tokens=group.num_completion_tokens,
        )

    def add(self, other: "TurnTokens") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True, kw_only=True)
class ClientSession:
    """One session; see SessionSummary of stats.proto."""

    session: bytes
    tenant: str
    used_at: float
    """Seconds on the scheduler's clock when its last turn ended, or when it came."""
    num_turns: int = 0
    num_live_requests: int = 0
    total: TurnTokens = field(default_factory=TurnTokens)
    last_turn: TurnTokens = field(default_factory=TurnTokens)
    last_request_id: str = ""
    last_worker: str = ""
    called_tool: bool | None = None
    keep_ns: int = 0
    last_prefix: PrefixComparison | None = None


def broken(prefix: PrefixComparison | None, num_found: int) -> PrefixComparison | None:
    """Returns a router's comparison with what the scheduler found of the prompt: equal tokens that
    were not there have been evicted, or are at another scheduler."""
    if prefix is None or prefix.cause is not PrefixCause.UNCHANGED:
        return prefix
    num_lost = prefix.num_kept_tokens - num_found
    if num_lost < MIN_LOST_TOKENS:
        return prefix
    cause = PrefixCause.OTHER_SCHEDULER if prefix.is_elsewhere else PrefixCause.EVICTED
    return prefix._replace(cause=cause, num_kept_tokens=num_found, num_lost_tokens=num_lost)


class ClientSessions:
    """The sessions that were used last."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[bytes, ClientSession] = OrderedDict()

    def begin(self, group: SequenceGroup, now: float) -> None:
        """Takes a request that has just come."""
        if group.request.session:
            session = self._use(group, now)
            session.num_live_requests += 1
            session.keep_ns = group.request.keep_ns

    def end(self, group: SequenceGroup, now: float) -> None:
        """Takes a request that has just ended; one that failed is no turn."""
        if not group.request.session:
            return
        session = self._use(group, now)
        session.num_live_requests = max(0, session.num_live_requests - 1)
        if group.failure is None:
            session.num_turns += 1
            session.used_at = now
            session.last_turn = TurnTokens.of(group)
            session.total.add(session.last_turn)
            session.last_request_id = group.request_id
            session.last_worker = group.timeline.worker
            session.last_prefix = broken(group.request.prefix, group.num_cached_tokens)
            session.called_tool = None

    def pause(self, pause: SessionPause) -> None:
        """Records how a turn has ended; a no-op if the session is unknown."""
        if (session := self._sessions.get(pause.session)) is not None:
            session.called_tool = pause.called_tool

    def latest(self, max_sessions: int) -> Iterable[ClientSession]:
        """Returns the sessions that were used last, the last first."""
        return islice(reversed(self._sessions.values()), max_sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def _use(self, group: SequenceGroup, now: float) -> ClientSession:
        request = group.request
        if (session := self._sessions.get(request.session)) is None:
            session = ClientSession(session=request.session, tenant=request.tenant, used_at=now)
            self._sessions[request.session] = session
            if len(self._sessions) > self._max_sessions:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(request.session)
        return session
