"""The newest keys of an identity provider, fetched in a thread: now and then, and when a token has an unknown key.

The event loop never waits for a fetch. A login by a token with an unknown key is refused at once; the next one finds
the new keys.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from odradek.security.key_fetch import FetchTimes, KeySetSource, read
from odradek.security.key_sets import KeySet, KeySetError

log = logging.getLogger("odradek.broker")

Fetch = Callable[[KeySetSource], KeySet]


class ProviderKeys:
    """``begin`` starts the first fetch. ``keys``: the newest set; an empty one before the first fetch."""

    def __init__(self, source: KeySetSource, times: FetchTimes, fetch: Fetch = read) -> None:
        self.source = source
        self.keys = KeySet()
        self._times = times
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.is_fetching = False
        self._begun_s: float | None = None
        self._failures = 0
        self._last_failure = ""
        self.first = self._loop.create_future()
        """Done after the first fetch, whether it had a result or not."""

    def begin(self) -> None:
        """Starts a fetch, unless one is in progress."""
        if self.is_fetching:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.is_fetching = True
        self._begun_s = self._loop.time()
        # A thread of its own: one that waits for a server does not keep the process from its end.
        threading.Thread(target=self._run, name="odradek-provider-keys", daemon=True).start()

    def _run(self) -> None:
        outcome: KeySet | Exception
        try:
            outcome = self._fetch(self.source)
        except Exception as error:  # the loop's thread logs it
            outcome = error
        try:
            self._loop.call_soon_threadsafe(self._end, outcome)
        except RuntimeError:
            pass  # the broker has stopped meanwhile

    def _end(self, outcome: KeySet | Exception) -> None:
        self.is_fetching = False
        times = self._times
        if isinstance(outcome, KeySet):
            if self._failures:
                log.info("the key set %s can be read again", self.source.url)
            if outcome.faults != self.keys.faults:  # once, until they change
                for fault in outcome.faults:
                    log.warning("the key set %s: %s; the broker ignores this key", self.source.url, fault)
            self.keys, self._failures, self._last_failure = outcome, 0, ""
            delay_ms = times.refresh_ms
        else:
            delay_ms = min(times.longest_backoff_ms, times.backoff_ms << min(self._failures, 20))
            self._failures += 1
            self._report(outcome)
        self._timer = self._loop.call_later(delay_ms / 1000, self.begin)
        if not self.first.done():
            self.first.set_result(None)

    def _report(self, error: Exception) -> None:
        """Logs a failure once, until it changes or a fetch succeeds."""
        text = str(error) if isinstance(error, KeySetError) else f"the key set {self.source.url}: {error!r}"
        if text != self._last_failure:
            self._last_failure = text
            kept = "the former keys stay in use" if self.keys.keys else "logins by OAUTHBEARER are refused"
            log.error("%s; %s, and the broker tries again", text, kept)

    def miss(self) -> None:
        """Starts a fetch because a token has an unknown key. Anyone can send such tokens, so not more often than the
        longest pause."""
        if self._begun_s is None or self._loop.time() - self._begun_s >= self._times.longest_backoff_ms / 1000:
            self.begin()
