"""Log lines name the request and the trace that they are of, as text and as JSON."""

import asyncio
import json
import logging
import sys

import pytest

from signalbox_rpc.telemetry import logs, trace_ids

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def line_of(log_format: str, message: str = "freed %d blocks", *values: object) -> str:
    formatter = logs.formatter("router", log_format)
    try:
        raise ValueError("why")
    except ValueError:
        exc_info = sys.exc_info() if "failed" in message else None
    record = logging.LogRecord("a.b", logging.INFO, __file__, 1, message, values, exc_info)
    return formatter.format(record)


def test_a_json_line_is_one_object_with_the_ids() -> None:
    with logs.of_request("mine", TRACEPARENT):
        line = json.loads(line_of("json", "freed %d blocks", 3))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "service": "router",
        "logger": "a.b",
        "message": "freed 3 blocks",
        "request_id": "mine",
        "trace_id": TRACE_ID,
    }


def test_json_has_an_events_name_and_its_fields_where_text_has_a_sentence() -> None:
    event = "worker joined: %(worker)s with %(num_blocks)d blocks"
    fields = {"worker": "a:1", "num_blocks": 3}
    line = json.loads(line_of("json", event, fields))
    assert (line["message"], line["worker"], line["num_blocks"]) == ("worker joined", "a:1", 3)
    assert line_of("text", event, fields).endswith("worker joined: a:1 with 3 blocks")


def test_the_level_is_named_and_coloured_on_a_terminal_alone() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "it is late", (), None)
    plain, coloured = (logs.formatter("router", "text", in_colour=it) for it in (False, True))
    assert plain.format(record).endswith("router    WARNING it is late")
    assert coloured.format(record).endswith("router    \x1b[33mWARNING\x1b[0m it is late")
    record.levelno, record.levelname = logging.INFO, "INFO"
    assert coloured.format(record).endswith("router    it is late")


def test_a_json_line_stays_one_line_whatever_was_raised() -> None:
    text = line_of("json", "it\nfailed")
    assert "\n" not in text
    assert "ValueError: why" in json.loads(text)["exception"]


def test_a_text_line_ends_with_the_ids_that_there_are() -> None:
    assert line_of("text", "freed").endswith("router    freed")
    with logs.of_request("mine", ""):
        assert line_of("text", "freed").endswith("freed request_id=mine")


def test_a_text_line_cannot_be_forged_by_what_a_client_sent() -> None:
    assert line_of("text", "asked: %s", "x\n12:00:00 router granted").count("\n") == 0
    odd = "naïve\r\x1b[2K\x85\u2028\ud800"  # goes back, deletes the line, begins others
    assert line_of("text", odd).endswith(r"naïve\r\x1b[2K\x85\u2028\ud800")


async def test_tasks_do_not_name_each_others_requests() -> None:
    async def work(request_id: str) -> str:
        logs.begin_request(request_id, "")
        await asyncio.sleep(0)
        return line_of("json", "x")

    lines = await asyncio.gather(*(asyncio.create_task(work(str(i))) for i in range(3)))
    assert [json.loads(line)["request_id"] for line in lines] == ["0", "1", "2"]
    assert "request_id" not in json.loads(line_of("json", "x"))


@pytest.mark.parametrize(
    "traceparent", ["", "nonsense", f"00-{TRACE_ID}-b7ad6b7169203331-00", TRACEPARENT[:-1]]
)
def test_a_trace_that_is_not_sampled_is_not_named(traceparent: str) -> None:
    assert trace_ids.of_traceparent(traceparent) == ""
    assert trace_ids.of_traceparent(TRACEPARENT) == TRACE_ID


def test_debug_is_of_us_not_of_grpcs_event_loop() -> None:
    logs.configure(service="router", level="debug", log_format="text")
    assert not logging.getLogger("grpc._cython.cygrpc").isEnabledFor(logging.INFO)
