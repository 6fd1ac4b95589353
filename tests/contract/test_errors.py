"""Exceptions have the codes of gRPC, and a number that came over the wire becomes one of them."""

import grpc
import pytest

from signalbox_contract import errors


def test_the_codes_are_those_of_grpc() -> None:
    assert {code.name: code.value for code in errors.Code} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }


@pytest.mark.parametrize("code", [code for code in errors.Code if code])
def test_a_code_number_becomes_the_exception_of_that_code(code: errors.Code) -> None:
    error = errors.from_code(int(code), "why", retry_after_s=2.0)
    assert (error.code, error.message) == (code, "why")
    has_retry = code in (errors.Code.RESOURCE_EXHAUSTED, errors.Code.UNAVAILABLE)
    assert isinstance(error, errors.Retryable) is has_retry


def test_an_unknown_code_number_is_unknown() -> None:
    assert errors.from_code(99, "why").code is errors.Code.UNKNOWN


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(errors.InvalidArgument("stop", "x" * 1_000_000, "1 to 1024 bytes").message) < 300
    assert errors.InvalidArgument("content", None, "a text").message == "content: allowed: a text"
