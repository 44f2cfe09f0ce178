"""What a poll waits for: heard on the loop and on a thread, not lost when it rings just before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from odradek.client.consumer.wakeup import WakeupSignal

LONG_S = 60.0


def listening(signal: WakeupSignal, is_done: Callable[[], bool] = lambda: False) -> threading.Thread:
    thread = threading.Thread(target=signal.wait_in_thread, args=(LONG_S, is_done), daemon=True)
    thread.start()
    return thread


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.001)


def test_a_thread_that_listens_is_woken() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        for _ in range(50):
            thread = listening(signal)
            await until(lambda: signal._thread_waits)
            signal.notify()
            await asyncio.to_thread(thread.join, LONG_S / 2)
            assert not thread.is_alive()

    asyncio.run(go())


def test_what_happened_before_is_not_waited_for() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        began = time.monotonic()
        signal.wait_in_thread(LONG_S, lambda: True)
        assert time.monotonic() - began < LONG_S / 2

    asyncio.run(go())


def test_rings_at_any_moment_are_heard() -> None:
    """Each turn's news comes at a moment of its own while the thread goes to sleep, wakes or works."""
    turns = 3000
    news: list[int] = []
    heard: list[int] = []

    async def go() -> None:
        signal = WakeupSignal()

        def work() -> None:
            while len(heard) < turns:
                signal.wait_in_thread(LONG_S, lambda: len(news) > len(heard))
                while len(heard) < len(news):
                    heard.append(news[len(heard)])

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        for number in range(turns):
            news.append(number)
            signal.notify()
            if number % 7 == 0:
                await until(lambda: len(heard) == len(news))
            elif number % 3 == 0:
                await asyncio.sleep(0)
        await until(lambda: not thread.is_alive())

    asyncio.run(go())
    assert heard == list(range(turns))


def test_a_coroutine_hears_what_rang_since_it_was_hushed() -> None:
    async def go() -> None:
        signal = WakeupSignal()
        signal.notify()
        await signal.wait(LONG_S)
        signal.clear()
        await signal.wait(0.001)  # returns without having rung
        asyncio.get_running_loop().call_soon(signal.notify)
        began = time.monotonic()
        await signal.wait(LONG_S)
        assert time.monotonic() - began < LONG_S / 2

    asyncio.run(go())


def test_who_is_cancelled_while_it_rings_ends_as_cancelled() -> None:
    """Else the task that polls would go on, though it was told to end."""

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
