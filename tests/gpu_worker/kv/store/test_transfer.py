"""A transfer says how long it took, whatever comes after its end."""

from signalbox_contract.sections.store_moves import decode_move_result, encode_move_result
from signalbox_worker.kv.store.transfer import Transfer


def test_a_transfer_that_was_cancelled_is_not_started_again() -> None:
    """Its reader may be about to ask again; a time below 0 can be sent to no scheduler."""
    transfer = Transfer(1, [b"key"], [memoryview(bytearray(4))])
    assert transfer.restart()
    transfer.end("cancelled")
    result = transfer.result()
    assert not transfer.restart()
    assert transfer.result() == result
    assert result.duration_ns >= 0


def test_a_fault_that_names_a_path_which_is_no_utf8_can_be_sent() -> None:
    transfer = Transfer(1, [b"key"])
    transfer.end("cannot read /kv/\udcff")
    assert (
        decode_move_result(encode_move_result(transfer.result())).failed
        == r"cannot read /kv/\udcff"
    )
