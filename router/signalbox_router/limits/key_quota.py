"""Limits of each API key: requests that run at a time, and tokens per minute.

Tokens are limited by a token bucket that is charged afterwards, because the length of an answer is
known only at its end. A key may go into debt, and is refused until its rate has paid the debt.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from signalbox_contract.errors import ResourceExhausted
from signalbox_router.limits.api_keys import ApiKey

RETRY_AFTER_S = 1.0
MINUTE_S = 60.0


@dataclass(slots=True)
class Account:
    """Usage of one key."""

    tokens: float
    """Tokens left in the bucket; below 0 is debt."""
    updated_at: float
    num_running: int = 0

    def spend(self, num_tokens: int) -> None:
        self.tokens -= num_tokens

    def refill(self, tokens_per_minute: int, now: float) -> None:
        """Adds the tokens earned since the last call, up to one minute's worth."""
        earned = (now - self.updated_at) / MINUTE_S * tokens_per_minute
        self.tokens = min(float(tokens_per_minute), self.tokens + earned)
        self.updated_at = now


class KeyLimits:
    """The accounts of all keys, by name."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @contextmanager
    def request(
        self, key: ApiKey | None, *names: str, may_owe: bool = False
    ) -> Iterator[Account | None]:
        """Holds one of the key's places; yields the account to charge, if tokens are limited.

        Args:
            names: the model's names.
            may_owe: whether a key that has used its tokens is not refused, as for the later inputs
                of a call that was not.

        Raises PermissionDenied or ResourceExhausted.
        """
        if key is None:
            yield None
            return
        key.check_model(*names)
        account = self._account(key)
        _check(key, account, may_owe=may_owe)
        account.num_running += 1
        try:
            yield account if key.tokens_per_minute is not None else None
        finally:
            account.num_running -= 1

    def _account(self, key: ApiKey) -> Account:
        now, rate = self._clock(), key.tokens_per_minute
        account = self._accounts.setdefault(key.name, Account(float(rate or 0), now))
        if rate is not None:
            account.refill(rate, now)
        return account


def _check(key: ApiKey, account: Account, *, may_owe: bool) -> None:
    most, rate = key.max_concurrent_requests, key.tokens_per_minute
    if most is not None and account.num_running >= most:
        raise ResourceExhausted(
            f"{most} requests of the API key {key.name} run already, which is its limit",
            RETRY_AFTER_S,
        )
    if rate is not None and account.tokens <= 0 and not may_owe:
        wait_s = (1 - account.tokens) / rate * MINUTE_S
        raise ResourceExhausted(
            f"the API key {key.name} has used its {rate} tokens a minute", wait_s
        )
