"""The quota ``request_percentage``: a middleware, since it concerns the requests of all APIs.

It stands in the router only while a client has such a quota. Bytes and partitions, which the other quotas are about,
are counted by the handlers that know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.middleware import Middleware
from odradek.broker.quotas import REQUEST_PERCENTAGE

if TYPE_CHECKING:
    from odradek.broker.api import Context
    from odradek.broker.quotas import Quotas


class RequestQuota(Middleware):
    """Counts the time that the loop works for a client."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def count_time(self, context: Context, seconds: float) -> None:
        context.throttle(self._quotas.record(REQUEST_PERCENTAGE, context.user, context.client_id, seconds * 100))
