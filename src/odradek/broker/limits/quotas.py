"""Client quotas: limits on produced and fetched bytes, request time, partition changes and new connections.

The rules are Kafka's (KIP-13, 124, 219, 599, 612). A client over its quota is throttled: its request is served, and the
reply contains ``throttle_time_ms``. The broker mutes the connection for that time. Then the rate of the client is at
the limit again. A throttled fetch gets no records, because they would count towards the exceeded quota.

Two quotas may refuse instead. Newer versions of requests that create or delete partitions get
THROTTLING_QUOTA_EXCEEDED, and a new connection is closed after a delay.

A client's quota is the first of these that exists:

1. user and client id; user and default client id; user;
2. default user and client id; default user and default client id; default user;
3. client id; default client id.

If the quota names a user, the use is counted for each user. If it names a client id, the use is counted for each client
id. Clients that are counted together share the rate.

Rates are measured over ``quota.window.num`` windows of ``quota.window.size.seconds``. As in Kafka, the oldest window
may be partly expired, and the amount of a new client is divided by the length of all windows but one. While no quota is
set, the broker measures nothing. The memory for clients is bounded (broker/limits/quota_tables).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.limits.quota_tables import MOST_ENTRIES, Bucket, Name, UseTable, short_name
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import Entity
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.catalog.delta import Delta

    class QuotaClient(Protocol):
        """A client whose use counts towards quotas."""

        client_id: str | None

        @property
        def user(self) -> str: ...

        def throttle(self, duration_ms: int) -> None:
            """Throttles the client for this time."""


USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
WHOLE_NUMBERS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)


class QuotaRate:
    """The amount recorded over the last windows, per second."""

    __slots__ = ("_count", "_samples", "_window_ms")

    def __init__(self, count: int, window_ms: int) -> None:
        self._count = count
        self._window_ms = window_ms
        self._samples: list[list[float]] = []  # [start, amount] of each window; smaller than a deque

    def record(self, now_ms: int, value: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, 0.0])
            if len(samples) > self._count:
                del samples[0]
        samples[-1][1] += value

    def measure(self, now_ms: int) -> tuple[float, float]:
        """Returns the rate per second and the measured time in milliseconds."""
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._count * self._window_ms:
            del samples[0]
        if not samples:
            return 0.0, float(self._window_ms)
        elapsed_ms = max(now_ms - samples[0][0], 0)
        missing = self._count - 1 - elapsed_ms // self._window_ms
        if missing > 0:
            elapsed_ms += missing * self._window_ms
        elapsed_ms = max(elapsed_ms, self._window_ms)
        return sum(value for _, value in samples) * 1000 / elapsed_ms, float(elapsed_ms)

    def throttle_ms(self, now_ms: int, limit: float) -> int:
        """Returns the throttle time after which the rate is at ``limit``."""
        rate, window_ms = self.measure(now_ms)
        return round((rate - limit) / limit * window_ms) if rate > limit else 0

    @property
    def ends_at_ms(self) -> int:
        """The time at which the last recorded amount leaves the windows."""
        return int(self._samples[-1][0]) + self._count * self._window_ms if self._samples else 0


class TokenBucket:
    """Permits that accumulate at a rate. A request may overdraw them; ``Quotas.mutate`` may refuse the next one."""

    __slots__ = ("_at_ms", "_tokens", "ends_at_ms")

    def __init__(self, now_ms: int) -> None:
        self._at_ms = now_ms
        self.ends_at_ms = now_ms
        """The time at which the bucket is full again."""
        self._tokens: float | None = None

    def tokens(self, now_ms: int, rate: float, burst: float) -> float:
        gained = rate * max(now_ms - self._at_ms, 0) / 1000
        self._tokens = burst if self._tokens is None else min(self._tokens + gained, burst)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, burst: float) -> None:
        self._tokens = (self._tokens or 0.0) - count
        self.ends_at_ms = self._at_ms + round((burst - self._tokens) / rate * 1000)


class Binding(NamedTuple):
    """A client's quota: its limit, and the bucket in which the use is counted."""

    limit: float
    bucket: Bucket


class Quotas:
    """The quotas of one broker and their use by its clients."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._limits: Mapping[Entity, Mapping[str, float]] = {}
        self._keys: set[str] = set()
        self.rates: UseTable[QuotaRate] = UseTable()
        self.permits: UseTable[TokenBucket] = UseTable()
        self.bindings: OrderedDict[tuple[str, Name, Name], Binding | None] = OrderedDict()
        self.on_replaced: Callable[[], None] = lambda: None
        """Called after each change of the quotas."""

    def replace(self, limits: Mapping[Entity, Mapping[str, float]]) -> None:
        """Replaces the quotas. Use that is already recorded still counts."""
        self._limits = limits
        self._keys = {key for quotas in limits.values() for key in quotas}
        self.bindings.clear()
        self.on_replaced()

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Takes the image's quotas if the delta changes quotas."""
        if delta.quotas:
            self.replace(image.quotas())

    def has_quota(self, key: str) -> bool:
        """Returns whether any quota of this kind is set."""
        return key in self._keys

    # --- the quota of a client ----------------------------------------------------------------------------------

    def binding(self, key: str, user: str, client_id: str | None) -> Binding | None:
        """Returns a client's quota of this kind, or None."""
        if key not in self._keys:
            return None
        asked = (key, short_name(user), short_name(client_id))
        if asked not in self.bindings:
            if len(self.bindings) >= MOST_ENTRIES:
                self.bindings.popitem(last=False)  # the oldest: its client's next request finds the binding again
            self.bindings[asked] = self._find(key, user, client_id or "")
        return self.bindings[asked]

    def _find(self, key: str, user: str, client_id: str) -> Binding | None:
        for entity, by_client, by_user in (
            (((CLIENT_ID, client_id), (USER, user)), client_id, user),
            (((CLIENT_ID, None), (USER, user)), client_id, user),
            (((USER, user),), None, user),
            (((CLIENT_ID, client_id), (USER, None)), client_id, user),
            (((CLIENT_ID, None), (USER, None)), client_id, user),
            (((USER, None),), None, user),
            (((CLIENT_ID, client_id),), client_id, None),
            (((CLIENT_ID, None),), client_id, None),
        ):
            limit = self._limits.get(entity, {}).get(key)
            if limit is not None:
                return Binding(limit, Bucket(key, short_name(by_user), short_name(by_client)))
        return None

    def _count(self, bucket: Bucket, now_ms: int, amount: float) -> QuotaRate:
        """Adds to a bucket's rate and returns the rate."""
        rate = self.rates.get(bucket)
        if rate is not None:
            rate.record(now_ms, amount)
            return rate
        config = self._config
        rate = QuotaRate(config.quota_window_num, config.quota_window_size_seconds * 1000)
        rate.record(now_ms, amount)
        return self.rates.add(bucket, rate, now_ms)

    # --- the use of quotas --------------------------------------------------------------------------------------

    def record(self, key: str, user: str, client_id: str | None, amount: float) -> int:
        """Counts bytes, or seconds of work times 100. Returns the throttle time in ms."""
        bound = self.binding(key, user, client_id)
        if bound is None:
            return 0
        now_ms = self._now_ms()
        throttle_ms = self._count(bound.bucket, now_ms, amount).throttle_ms(now_ms, bound.limit)
        if key == REQUEST_PERCENTAGE:
            return min(throttle_ms, self._config.quota_window_size_seconds * 1000)
        return throttle_ms

    def charge_time(self, context: QuotaClient, seconds: float) -> None:
        """Counts time of the event loop towards ``request_percentage``, and throttles a client that exceeds it."""
        context.throttle(self.record(REQUEST_PERCENTAGE, context.user, context.client_id, seconds * 100))

    def share_charge(self, context: QuotaClient) -> Callable[[float], None] | None:
        """Returns ``charge_time`` for a client, or None if no quota of this kind is set."""
        return partial(self.charge_time, context) if self.has_quota(REQUEST_PERCENTAGE) else None

    def take_back(self, key: str, user: str, client_id: str | None, amount: float) -> None:
        """Reverts a call of ``record`` for bytes that were not sent."""
        bound = self.binding(key, user, client_id)
        if bound is not None:
            self._count(bound.bucket, self._now_ms(), -amount)

    def most_in_window(self, key: str, user: str, client_id: str | None) -> int | None:
        """Returns the most bytes of one reply that do not throttle the client by themselves; None without a quota."""
        bound = self.binding(key, user, client_id)
        if bound is None:
            return None
        return int(bound.limit * (self._config.quota_window_num - 1) * self._config.quota_window_size_seconds)

    def mutate(self, user: str, client_id: str | None, count: int, *, strict: bool) -> None:
        """Takes permits to create or delete ``count`` partitions.

        ``strict``: raises KafkaError (THROTTLING_QUOTA_EXCEEDED) while the permits are overdrawn.
        """
        bound = self.binding(CONTROLLER_MUTATION_RATE, user, client_id)
        if bound is None:
            return
        now_ms = self._now_ms()
        config = self._config
        burst = bound.limit * config.controller_quota_window_num * config.controller_quota_window_size_seconds
        bucket = self.permits.get(bound.bucket)
        if bucket is None:
            bucket = self.permits.add(bound.bucket, TokenBucket(now_ms), now_ms)
        if bucket.tokens(now_ms, bound.limit, burst) < 0 and strict:
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        bucket.take(count, bound.limit, burst)

    def mutation_throttle_ms(self, user: str, client_id: str | None) -> int:
        """Returns the time in ms until the permits of a client are not overdrawn any more."""
        bound = self.binding(CONTROLLER_MUTATION_RATE, user, client_id)
        bucket = self.permits.get(bound.bucket) if bound is not None else None
        if bound is None or bucket is None:
            return 0
        missing = -bucket.tokens(self._now_ms(), bound.limit, float("inf"))
        return max(round(missing / bound.limit * 1000), 0)

    def count_connection(self, host: str) -> int:
        """Counts a connection from an address. Returns 0, or the delay in ms before the connection is refused."""
        if CONNECTION_CREATION_RATE not in self._keys:
            return 0
        limit = self._limits.get(((IP, host),), {}).get(CONNECTION_CREATION_RATE)
        if limit is None:
            limit = self._limits.get(((IP, None),), {}).get(CONNECTION_CREATION_RATE)
        if limit is None:
            return 0
        now_ms = self._now_ms()
        rate = self._count(Bucket(CONNECTION_CREATION_RATE, host, None), now_ms, 1)
        throttle_ms = rate.throttle_ms(now_ms, limit)
        if throttle_ms:
            rate.record(now_ms, -1)
        return min(throttle_ms, self._config.quota_window_size_seconds * 1000)


class Permits:
    """The controller_mutation_rate of one request's client.

    ``strict``: the request's version has the error THROTTLING_QUOTA_EXCEEDED.
    """

    def __init__(self, quotas: Quotas, context: QuotaClient, *, strict: bool) -> None:
        self._quotas = quotas
        self._context = context
        self._strict = strict

    def take(self, count: int) -> None:
        """Takes permits for ``count`` partitions.

        With ``strict``, raises KafkaError (THROTTLING_QUOTA_EXCEEDED) and throttles the client if the permits are
        already overdrawn. Otherwise never refuses, and throttles the client once the permits are overdrawn.
        """
        quotas, context = self._quotas, self._context
        if not quotas.has_quota(CONTROLLER_MUTATION_RATE):
            return
        refused = True
        try:
            quotas.mutate(context.user, context.client_id, count, strict=self._strict)
            refused = False
        finally:
            if refused or not self._strict:
                context.throttle(quotas.mutation_throttle_ms(context.user, context.client_id))
