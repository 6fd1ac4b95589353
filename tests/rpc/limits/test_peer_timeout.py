"""Whether a peer is silent, or we have not listened."""

import asyncio
import time

from signalbox_rpc.limits.peer_timeout import wait_for_first


async def test_a_pause_of_our_own_is_not_the_silence_of_a_peer() -> None:
    loop = asyncio.get_running_loop()
    message: asyncio.Future[str] = loop.create_future()
    loop.call_soon(time.sleep, 1.5)  # meanwhile the peer speaks; we read it a little later
    loop.call_later(0.02, loop.call_later, 0.02, message.set_result, "here")
    assert await wait_for_first(message, within_s=1.0)


async def test_a_silent_peer_is_missed_after_its_time() -> None:
    loop = asyncio.get_running_loop()
    message: asyncio.Future[str] = loop.create_future()
    started_at = loop.time()
    assert not await wait_for_first(message, within_s=0.2)
    assert loop.time() - started_at >= 0.19
    assert not message.done()  # the caller decides what becomes of it
