"""Delivers the announcements of a webhook, one after another, in a thread of its own.

A slow receiver delays no other one. An announcement is delivered at least once: a monitor that is killed between the
receiver's answer and its note sends it again, with the same ``webhook-id``.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.incidents.bodies import Message
from odradek.monitor.incidents.delivery import LONGEST_PAUSE_MS, DeliveryFate, HookAnswer, attempt_after, retry_after_ms
from odradek.monitor.incidents.store import IncidentStore, PendingDelivery
from odradek.monitor.incidents.webhook_file import Webhook

logger = logging.getLogger("odradek.monitor")

_LOOK_EVERY_S = 1.0
_READ_OF_ANSWER = 1 << 16


Post = Callable[[Webhook, Message, int], HookAnswer]
"""Makes an attempt at a time in seconds since 1970."""


class HookSender:
    """Delivers what ``store`` has for a webhook. ``message_of``: returns what an announcement says.

    ``now_ms``: the time since 1970. ``post``: makes an attempt. ``counts``: the attempts by fate, for the metrics."""

    def __init__(
        self,
        hook: Webhook,
        store: IncidentStore,
        message_of: Callable[[PendingDelivery], Message],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        post: Post | None = None,
    ) -> None:
        self.hook = hook
        self._post: Post = post or send
        self.counts: Counter[DeliveryFate] = Counter()
        self._store, self._message_of, self._now_ms = store, message_of, now_ms
        self._more = threading.Event()
        self._has_failed = False

    def wake(self) -> None:
        """There may be something to deliver."""
        self._more.set()

    def run(self, stop: threading.Event) -> None:
        """Delivers until ``stop`` is set; ``wake`` after that ends the wait at once."""
        while not stop.is_set():
            try:
                pause_s = self.step()
            except StoreFailed as error:
                logger.warning("webhook %s: the announcements cannot be read: %s", self.hook.name, error)
                pause_s = 10 * _LOOK_EVERY_S
            if pause_s and not stop.is_set():
                self._more.wait(pause_s)
                self._more.clear()

    def step(self) -> float:
        """Makes the attempt that is due. Returns for how many seconds nothing is due."""
        delivery = self._store.next_delivery(self.hook.name)
        if delivery is None:
            return _LOOK_EVERY_S
        early_ms = delivery.due_ms - self._now_ms()
        if 0 < early_ms <= LONGEST_PAUSE_MS:  # a clock that was put back makes no longer pause
            return min(early_ms / 1000, _LOOK_EVERY_S)
        self._attempt(delivery)
        return 0.0

    def _attempt(self, delivery: PendingDelivery) -> None:
        answer = self._post(self.hook, self._message_of(delivery), int(self._now_ms() / 1000))
        made = attempt_after(answer, delivery.attempts + 1, self.hook.attempts)
        self.counts[made.fate] += 1
        what = f"incident {delivery.incident.id} ({delivery.event.value})"
        if made.fate is DeliveryFate.REPEATED:
            self._store.postpone(delivery.number, self._now_ms() + made.pause_ms, answer.reason)
            if not self._has_failed:
                logger.warning("webhook %s: %s is not delivered yet: %s", self.hook.name, what, answer.reason)
            self._has_failed = True
            return
        self._store.end_delivery(delivery.number)
        if made.fate is DeliveryFate.GIVEN_UP:
            logger.warning("webhook %s: %s is given up: %s", self.hook.name, what, answer.reason)
        elif self._has_failed:
            logger.warning("webhook %s: announcements are delivered again", self.hook.name)
        self._has_failed = made.fate is DeliveryFate.GIVEN_UP


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: secrets of the headers would go with it."""

    def redirect_request(self, *given: Any) -> None:
        return None


def send(hook: Webhook, message: Message, time_s: int) -> HookAnswer:
    """Makes one attempt. An answer that is no HTTP has the code 0."""
    body = hook.render(message)
    message_id = f"{message.incident.id}.{message.number}"
    headers = {"Content-Type": hook.content_type, "User-Agent": "odradek-monitor", **hook.headers}
    headers |= {"webhook-id": message_id} if hook.signer is None else hook.signer.headers(message_id, time_s, body)
    request = urllib.request.Request(hook.url, body, headers, method="POST")
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=hook.tls))
    try:
        with opener.open(request, timeout=hook.timeout_s) as reply:
            reply.read(_READ_OF_ANSWER)
            return HookAnswer(reply.status)
    except urllib.error.HTTPError as error:
        with error:
            lowered = {name.lower(): value for name, value in error.headers.items()}
            return HookAnswer(error.code, f"HTTP {error.code} {error.reason}".strip(), retry_after_ms(lowered))
    except urllib.error.URLError as error:
        return HookAnswer(0, str(getattr(error.reason, "strerror", None) or error.reason))
    except (OSError, HTTPException) as error:
        return HookAnswer(0, str(error) or type(error).__name__)
