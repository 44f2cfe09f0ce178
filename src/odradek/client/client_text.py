"""What ``repr`` shows of clients: the cluster, and what a client reads, holds or has not delivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from odradek.core.ids import TopicPartition

_MOST_PARTITIONS = 5


class _Position(Protocol):
    @property
    def ready(self) -> bool: ...
    @property
    def position(self) -> int: ...


class _Subscription(Protocol):
    @property
    def read_topics(self) -> frozenset[str]: ...
    @property
    def partitions(self) -> Mapping[TopicPartition, _Position]: ...


def admin_text(addresses: str, *, is_closed: bool) -> str:
    """Returns the text for an Admin."""
    return "<Admin, closed>" if is_closed else f"<Admin of {addresses}>"


def producer_text(addresses: str, transactional_id: str | None, buffered: int | None) -> str:
    """Returns the text for a Producer. ``buffered``: the bytes that are not delivered; None: it is closed."""
    if buffered is None:
        return "<Producer, closed>"
    of = "" if transactional_id is None else f" with transactional.id {transactional_id!r}"
    return f"<Producer to {addresses}{of}: {buffered} bytes not delivered>"


def consumer_text(addresses: str, group: str | None, subscription: _Subscription | None, *, is_closed: bool) -> str:
    """Returns the text for a Consumer. ``subscription``: None before the first call.

    It takes no lock: the background thread may change the partitions meanwhile."""
    if is_closed:
        return "<Consumer, closed>"
    states = {} if subscription is None else dict(subscription.partitions)
    topics = frozenset() if subscription is None else subscription.read_topics
    of = "" if group is None else f" of group {group!r}"
    return f"<Consumer{of} at {addresses}: {_positions(states, topics)}>"


def _positions(states: Mapping[TopicPartition, _Position], topics: frozenset[str]) -> str:
    if not states:
        return f"subscribed to {', '.join(sorted(topics))}, without partitions" if topics else "no topics"
    rows = sorted(states.items(), key=lambda row: row[0])
    shown = [f"{tp} at {one.position}" if one.ready else str(tp) for tp, one in rows[:_MOST_PARTITIONS]]
    rest = len(rows) - len(shown)
    return ", ".join(shown) + (f" and {rest} more partitions" if rest else "")
