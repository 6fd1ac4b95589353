"""What Chrome's trace event format prescribes, and Perfetto asks for beyond it."""

from collections.abc import Iterable
from typing import Any

Event = dict[str, Any]


def check_format(content: dict[str, Any]) -> None:
    """Asserts keys and their types, times, names of threads, nesting, and ends of arrows."""
    events = content["traceEvents"]
    assert content["displayTimeUnit"] in ("ms", "ns")
    for event in events:
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("ts", "pid", "tid"))
        assert event["name"] and isinstance(event["name"], str)
        assert event["ph"] in "XiMsf"
        if event["ph"] in "XiM":
            assert isinstance(event["args"], dict)
    spans = of_phase(events, "X")
    assert all(isinstance(one["dur"], int) and one["dur"] >= 0 for one in spans)
    assert all(one["s"] == "t" for one in of_phase(events, "i"))
    check_names(events)
    for tid in {one["tid"] for one in spans}:
        check_nesting(one for one in spans if one["tid"] == tid)
    check_arrows(events)


def of_phase(events: Iterable[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def names_of(events: Iterable[Event], kind: str) -> dict[int, str]:
    """Returns the names of processes by pid, or of threads by tid."""
    key = "pid" if kind == "process" else "tid"
    named = [one for one in of_phase(events, "M") if one["name"] == f"{kind}_name"]
    assert len({one[key] for one in named}) == len(named)
    return {one[key]: one["args"]["name"] for one in named}


def check_names(events: list[Event]) -> None:
    """Each process and thread has a name; a tid is that of one thread of all processes."""
    processes, threads = names_of(events, "process"), names_of(events, "thread")
    assert all(processes.values()) and all(threads.values())
    places = {(one["pid"], one["tid"]) for one in events if one["ph"] != "M"}
    assert all(pid in processes and tid in threads for pid, tid in places)
    assert len({tid for _, tid in places}) == len(places)


def check_nesting(spans: Iterable[Event]) -> None:
    """Spans of one thread lie within each other or apart, and outer ones come first."""
    ends: list[int] = []
    last = 0
    for span in spans:
        assert span["ts"] >= last
        last = span["ts"]
        while ends and ends[-1] <= span["ts"]:
            ends.pop()
        assert not ends or span["ts"] + span["dur"] <= ends[-1], span
        ends.append(span["ts"] + span["dur"])


def check_arrows(events: list[Event]) -> None:
    """An arrow leaves within a span before it ends within another.

    Perfetto reads events by time, and those of one time by their place in the file.
    """
    spans, leaving = of_phase(events, "X"), {}
    for event in (one for one in events if one["ph"] in "sf"):
        assert any(
            one["tid"] == event["tid"] and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
            for one in spans
        )
        if event["ph"] == "s":
            leaving[event["id"]] = event
            continue
        start = leaving.pop(event["id"])
        assert (start["name"], start["cat"], event["bp"]) == (event["name"], event["cat"], "e")
    assert not leaving
