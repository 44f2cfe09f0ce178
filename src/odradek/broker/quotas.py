"""Client quotas: how much a client may write, read, occupy and create before its connection rests.

As in Kafka (KIP-13, 124, 219, 599, 612): a client over its rate is served, told ``throttle_time_ms`` and then not read
from for that long, so that the rate over the window comes down to the limit; only a fetch is answered without
records, since those are what it is over with. Which quota binds a client: the first that exists of user and client
id, user and any client id, user; any user and client id, any user and any client id, any user; client id; any
client id. Clients bound by one row of one user (or client id) share its rate.

Rates are taken over ``quota.window.num`` windows of ``quota.window.size.seconds``, as Kafka takes them: the oldest
window may be partly over, and a young rate is divided by the length of all but one. Nothing is measured while no
quota is set. What is kept of clients is bounded (broker/quota_tables).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.config import BrokerConfig
from odradek.broker.quota_tables import MOST_ENTRIES, Bucket, Name, UseTable, short_name
from odradek.catalog.shard import Entity
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.catalog_image import CatalogImage
    from odradek.catalog.delta import Delta

    class Consumer(Protocol):
        """A client that uses up quotas."""

        user: str
        client_id: str | None

        def throttle(self, duration_ms: int) -> None:
            """Lets it rest for so long."""


USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
WHOLE_NUMBERS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)


class Rate:
    """What was recorded over the last windows, per second."""

    __slots__ = ("_count", "_samples", "_window_ms")

    def __init__(self, count: int, window_ms: int) -> None:
        self._count = count
        self._window_ms = window_ms
        self._samples: list[list[float]] = []  # fewer bytes than a deque, and as many as there are windows

    def record(self, now_ms: int, value: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, 0.0])
            if len(samples) > self._count:
                del samples[0]
        samples[-1][1] += value

    def measure(self, now_ms: int) -> tuple[float, float]:
        """The rate per second and the milliseconds it was taken over."""
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
        """How long to rest for the rate to come down to ``limit``."""
        rate, window_ms = self.measure(now_ms)
        return round((rate - limit) / limit * window_ms) if rate > limit else 0

    @property
    def ends_at_ms(self) -> int:
        """From when on nothing of what was recorded counts."""
        return int(self._samples[-1][0]) + self._count * self._window_ms if self._samples else 0


class TokenBucket:
    """Permits that come at a rate; the bucket may be overdrawn once, and is closed until it is even again."""

    __slots__ = ("_at_ms", "_tokens", "ends_at_ms")

    def __init__(self, now_ms: int) -> None:
        self._at_ms = now_ms
        self.ends_at_ms = now_ms
        """When it is full again."""
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
    """The quota that binds a client: its limit, and whose consumption counts towards it."""

    limit: float
    bucket: Bucket


class Quotas:
    """The quotas of one broker and what its clients have used of them."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._limits: Mapping[Entity, Mapping[str, float]] = {}
        self._keys: set[str] = set()
        self._rates: UseTable[Rate] = UseTable()
        self._permits: UseTable[TokenBucket] = UseTable()
        self._bindings: OrderedDict[tuple[str, Name, Name], Binding | None] = OrderedDict()
        self.on_taken: Callable[[], None] = lambda: None
        """Called when others hold."""

    def take(self, limits: Mapping[Entity, Mapping[str, float]]) -> None:
        """The quotas that hold from now on; what was used under others still counts."""
        self._limits = limits
        self._keys = {key for quotas in limits.values() for key in quotas}
        self._bindings.clear()
        self.on_taken()

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        """Quotas that were changed bind from now on."""
        if delta.quotas:
            self.take(image.quotas())

    def limited(self, key: str) -> bool:
        """Whether anybody has such a quota."""
        return key in self._keys

    # --- who is bound by what -----------------------------------------------------------------------------------

    def binding(self, key: str, user: str, client_id: str | None) -> Binding | None:
        """The quota of this kind that binds a client."""
        if key not in self._keys:
            return None
        asked = (key, short_name(user), short_name(client_id))
        if asked not in self._bindings:
            if len(self._bindings) >= MOST_ENTRIES:
                self._bindings.popitem(last=False)  # the oldest: to find it again takes eight look-ups
            self._bindings[asked] = self._find(key, user, client_id or "")
        return self._bindings[asked]

    def _find(self, key: str, user: str, client_id: str) -> Binding | None:
        for named, by_client, by_user in (
            (((CLIENT_ID, client_id), (USER, user)), client_id, user),
            (((CLIENT_ID, None), (USER, user)), client_id, user),
            (((USER, user),), None, user),
            (((CLIENT_ID, client_id), (USER, None)), client_id, user),
            (((CLIENT_ID, None), (USER, None)), client_id, user),
            (((USER, None),), None, user),
            (((CLIENT_ID, client_id),), client_id, None),
            (((CLIENT_ID, None),), client_id, None),
        ):
            limit = self._limits.get(named, {}).get(key)
            if limit is not None:
                return Binding(limit, Bucket(key, short_name(by_user), short_name(by_client)))
        return None

    def _count(self, bucket: Bucket, now_ms: int, amount: float) -> Rate:
        """Adds to a bucket's rate."""
        rate = self._rates.get(bucket)
        if rate is not None:
            rate.record(now_ms, amount)
            return rate
        config = self._config
        rate = Rate(config.quota_window_num, config.quota_window_size_seconds * 1000)
        rate.record(now_ms, amount)
        return self._rates.add(bucket, rate, now_ms)

    # --- using them up ------------------------------------------------------------------------------------------

    def record(self, key: str, user: str, client_id: str | None, amount: float) -> int:
        """Counts bytes, or seconds of work times 100; returns for how many milliseconds the client is to rest."""
        bound = self.binding(key, user, client_id)
        if bound is None:
            return 0
        now_ms = self._now_ms()
        throttle_ms = self._count(bound.bucket, now_ms, amount).throttle_ms(now_ms, bound.limit)
        if key == REQUEST_PERCENTAGE:
            return min(throttle_ms, self._config.quota_window_size_seconds * 1000)
        return throttle_ms

    def take_back(self, key: str, user: str, client_id: str | None, amount: float) -> None:
        """Undoes a ``record`` whose bytes were not sent after all."""
        bound = self.binding(key, user, client_id)
        if bound is not None:
            self._count(bound.bucket, self._now_ms(), -amount)

    def most_in_window(self, key: str, user: str, client_id: str | None) -> int | None:
        """The most bytes one reply may hold without its client being bound to rest; ``None`` without a quota."""
        bound = self.binding(key, user, client_id)
        if bound is None:
            return None
        return int(bound.limit * (self._config.quota_window_num - 1) * self._config.quota_window_size_seconds)

    def mutate(self, user: str, client_id: str | None, count: int, *, strict: bool) -> None:
        """Takes permits for ``count`` partitions made or removed.

        ``strict`` refuses while the permits are overdrawn: raises KafkaError (THROTTLING_QUOTA_EXCEEDED).
        """
        bound = self.binding(CONTROLLER_MUTATION_RATE, user, client_id)
        if bound is None:
            return
        now_ms = self._now_ms()
        config = self._config
        burst = bound.limit * config.controller_quota_window_num * config.controller_quota_window_size_seconds
        bucket = self._permits.get(bound.bucket)
        if bucket is None:
            bucket = self._permits.add(bound.bucket, TokenBucket(now_ms), now_ms)
        if bucket.tokens(now_ms, bound.limit, burst) < 0 and strict:
            raise KafkaError(ErrorCode.throttling_quota_exceeded)
        bucket.take(count, bound.limit, burst)

    def mutation_throttle_ms(self, user: str, client_id: str | None) -> int:
        """For how long the permits of a client stay overdrawn."""
        bound = self.binding(CONTROLLER_MUTATION_RATE, user, client_id)
        bucket = self._permits.get(bound.bucket) if bound is not None else None
        if bound is None or bucket is None:
            return 0
        missing = -bucket.tokens(self._now_ms(), bound.limit, float("inf"))
        return max(round(missing / bound.limit * 1000), 0)

    def connected(self, host: str) -> int:
        """Counts a connection from an address; returns for how many milliseconds it is held before it is refused."""
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
    """What one request may create or delete under its client's controller_mutation_rate."""

    def __init__(self, quotas: Quotas, context: Consumer, *, strict: bool) -> None:
        self._quotas = quotas
        self._context = context
        self._strict = strict

    def take(self, count: int) -> None:
        """Raises KafkaError (THROTTLING_QUOTA_EXCEEDED) where they are overdrawn and the client knows that error.

        Then such a client rests; one that does not know it is never refused, and rests as soon as it has overdrawn.
        """
        quotas, context = self._quotas, self._context
        if not quotas.limited(CONTROLLER_MUTATION_RATE):
            return
        refused = True
        try:
            quotas.mutate(context.user, context.client_id, count, strict=self._strict)
            refused = False
        finally:
            if refused or not self._strict:
                context.throttle(quotas.mutation_throttle_ms(context.user, context.client_id))
