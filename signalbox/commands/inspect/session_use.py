"""Sessions that clients name, as `signalbox top` shows them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.table import Column, Table
from rich.text import Text

from signalbox.client.tables import make_table, right
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import stats_pb2 as pb

_SHOWN_BYTES = 4
"""Bytes of a session's hash that tell the listed ones apart."""
_INTACT = (explain_pb2.PREFIX_CAUSE_UNSPECIFIED, explain_pb2.PREFIX_CAUSE_UNCHANGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesFound:
    """Tokens of prompts, by where they were found."""

    num_prompt_tokens: int
    num_device_tokens: int
    num_cpu_tokens: int
    num_store_tokens: int

    @classmethod
    def of(cls, tokens: pb.TurnTokens) -> "PlacesFound":
        return cls(**{name: getattr(tokens, name) for name in cls.__slots__})

    @property
    def num_found(self) -> int:
        return self.num_device_tokens + self.num_cpu_tokens + self.num_store_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUse:
    """One session."""

    session: str
    """The first digits of its hash."""
    num_turns: int
    is_live: bool
    total: PlacesFound
    last_turn: PlacesFound
    last_worker: str
    called_tool: bool | None
    idle_s: float
    broken_by: str
    """Cause that broke the last turn's prefix, and the place in its request; empty without one."""
    num_lost_tokens: int


def session_use(summary: pb.SessionSummary) -> SessionUse:
    broken_by = ""
    if summary.last_prefix.cause not in _INTACT:
        name = explain_pb2.PrefixCause.Name(summary.last_prefix.cause)
        words = name.removeprefix("PREFIX_CAUSE_").replace("_", " ").lower()
        broken_by = f"{words} {summary.last_prefix.path}".rstrip()
    return SessionUse(
        session=summary.session[:_SHOWN_BYTES].hex(),
        num_turns=summary.num_turns,
        is_live=summary.num_live_requests > 0,
        total=PlacesFound.of(summary.total),
        last_turn=PlacesFound.of(summary.last_turn),
        last_worker=summary.last_worker,
        called_tool=summary.called_tool if summary.HasField("called_tool") else None,
        idle_s=summary.idle_ns / 1e9,
        broken_by=broken_by,
        num_lost_tokens=summary.last_prefix.num_lost_tokens if broken_by else 0,
    )


def session_table(sessions: Sequence[SessionUse]) -> Table:
    table = make_table(
        Column("session", no_wrap=True),
        *map(right, ("turns", "found", "last")),
        Column("where", no_wrap=True),
        right("idle"),
        Column("what broke", overflow="fold"),
    )
    for one in sessions:
        table.add_row(
            one.session,
            f"{one.num_turns:,}",
            _share(one.total),
            _share(one.last_turn),
            _places(one.last_turn),
            _state(one),
            Text(_broken(one)),  # a client chose the names in a path, so it is no markup
        )
    return table


def _share(found: PlacesFound) -> str:
    return f"{found.num_found / found.num_prompt_tokens:.0%}" if found.num_prompt_tokens else ""


def _places(found: PlacesFound) -> str:
    """Returns a line for each place where tokens of a prompt were found."""
    places = asdict(found)
    names = ("device", "cpu", "store")
    return "\n".join(
        f"{name} {number:,}" for name in names if (number := places[f"num_{name}_tokens"])
    )


def _state(one: SessionUse) -> str:
    if one.is_live:
        return "live"
    return f"{one.idle_s:,.0f} s" + (", tool" if one.called_tool else "")


def _broken(one: SessionUse) -> str:
    return f"{one.broken_by}: {one.num_lost_tokens:,} tokens" if one.broken_by else ""
