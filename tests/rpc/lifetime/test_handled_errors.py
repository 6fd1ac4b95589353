"""An exception that was handled keeps no variable of the functions that it came through."""

import weakref

from signalbox_rpc.lifetime.handled_errors import release_frames


class Held:
    pass


def raised(cause: BaseException | None) -> tuple[Exception, "weakref.ref[Held]"]:
    held = Held()
    try:
        raise ValueError from cause
    except ValueError as error:
        return error, weakref.ref(held)


def test_variables_are_freed_of_causes_too_and_of_causes_in_a_cycle() -> None:
    cause, of_cause = raised(None)
    error, of_error = raised(cause)
    cause.__cause__ = error
    assert of_cause() and of_error()
    release_frames(error)
    assert not of_cause() and not of_error()
