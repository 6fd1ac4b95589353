"""A move says how long it took, whatever comes after its end."""

from signalbox_contract.sections.store_moves import decode_move_result, encode_move_result
from signalbox_worker.kv_store.move import Move


def test_a_move_that_was_called_off_is_not_started_anew() -> None:
    """Its reader may be about to ask again; a time below 0 can be sent to nobody."""
    move = Move(1, [b"key"], [memoryview(bytearray(4))])
    assert move.restart()
    move.end("called off")
    result = move.result()
    assert not move.restart()
    assert move.result() == result
    assert result.duration_ns >= 0


def test_a_fault_that_names_a_path_which_is_no_utf8_can_be_sent() -> None:
    move = Move(1, [b"key"])
    move.end("cannot read /kv/\udcff")
    assert decode_move_result(encode_move_result(move.result())).failed == r"cannot read /kv/\udcff"
