"""The elections that the controller makes from time to time: preferred leaders, and unclean ones where topics allow it.

They follow the time of the event loop, as the sessions of brokers do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.cluster.cluster_catalog import ControlSteps
from odradek.cluster.control import ClusterControl

if TYPE_CHECKING:
    import asyncio

    from odradek.broker.controller.registered_brokers import RegisteredBrokers

log = logging.getLogger("odradek.broker")

Check = Callable[[ClusterControl], ControlSteps[bool]]
"""Makes the elections that are due. Its response: whether more may be due."""


class PeriodicElections:
    """One kind of elections, every ``interval_s`` seconds from ``begin`` on."""

    def __init__(
        self, brokers: RegisteredBrokers, loop: asyncio.AbstractEventLoop, interval_s: float, check: Check
    ) -> None:
        self._brokers = brokers
        self._loop = loop
        self._interval_s = interval_s
        self._check = check
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def begin(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._elect)

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _elect(self) -> None:
        if not self._is_over:
            self._brokers.submit(lambda control, _: self._check(control)).then(self._after)

    def _after(self, result: object) -> None:
        if isinstance(result, Exception):
            log.error("leaders that are due could not be elected: %s", result)
        if self._is_over:
            return
        if result is True:  # more are due
            self._timer = self._loop.call_later(0, self._elect)
        else:
            self.begin()
