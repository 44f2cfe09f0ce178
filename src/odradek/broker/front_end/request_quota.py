"""The quota ``request_percentage``, a middleware because it concerns the requests of all APIs.

It is installed in the router only while such a quota is set. The handlers count bytes and partitions for the other
quotas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.middleware import Middleware

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Context
    from odradek.broker.limits.quotas import Quotas


class RequestQuota(Middleware):
    """Counts the time that the event loop works for a client."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def count_time(self, context: Context, seconds: float) -> None:
        if not context.is_exempt:
            self._quotas.charge_time(context, seconds)
