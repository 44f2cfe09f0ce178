"""The signal for which a poll waits, in the event loop or in a thread.

A signal that comes just before the wait is not lost.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from odradek.client.consumer.wakeup import WakeupSignal

LONG_S = 60.0


def waiting_thread(signal: WakeupSignal, is_done: Callable[[], bool] = lambda: False) -> threading.Thread:
    thread = threading.Thread(target=signal.wait_in_thread, args=(LONG_S, is_done), daemon=True)
    thread.start()
    return thread


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.001)


def test_a_waiting_thread_is_woken() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        for _ in range(50):
            thread = waiting_thread(signal)
            await until(lambda: signal.thread_waits)
            signal.notify()
            await asyncio.to_thread(thread.join, LONG_S / 2)
            assert not thread.is_alive()

    asyncio.run(go())


def test_a_wait_ends_at_once_if_its_condition_is_true() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        began = time.monotonic()
        signal.wait_in_thread(LONG_S, lambda: True)
        assert time.monotonic() - began < LONG_S / 2

    asyncio.run(go())


def test_a_notification_at_any_moment_wakes_the_thread() -> None:
    """The notifications come at different moments: while the thread starts to wait, wakes or works."""
    turns = 3000
    sent: list[int] = []
    received: list[int] = []

    async def go() -> None:
        signal = WakeupSignal()

        def work() -> None:
            while len(received) < turns:
                signal.wait_in_thread(LONG_S, lambda: len(sent) > len(received))
                while len(received) < len(sent):
                    received.append(sent[len(received)])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        for number in range(turns):
            sent.append(number)
            signal.notify()
            if number % 7 == 0:
                await until(lambda: len(received) == len(sent))
            elif number % 3 == 0:
                await asyncio.sleep(0)
        await until(lambda: not thread.is_alive())

    asyncio.run(go())
    assert received == list(range(turns))


def test_a_coroutine_is_woken_by_a_notification_after_clear() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        signal.notify()
        await signal.wait(LONG_S)
        signal.clear()
        await signal.wait(0.001)  # returns without a notification
        asyncio.get_running_loop().call_soon(signal.notify)
        began = time.monotonic()
        await signal.wait(LONG_S)
        assert time.monotonic() - began < LONG_S / 2

    asyncio.run(go())


def test_a_cancelled_wait_ends_as_cancelled_despite_a_notification() -> None:
    """Otherwise the task that polls would continue after its cancellation."""

    async def go() -> None:
        signal = WakeupSignal()
        for turns in range(4):
            waiting = asyncio.ensure_future(signal.wait(LONG_S))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            signal.notify()
            for _ in range(turns):
                await asyncio.sleep(0)
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait([waiting])
                assert waiting.cancelled()
            signal.clear()

    asyncio.run(go())
