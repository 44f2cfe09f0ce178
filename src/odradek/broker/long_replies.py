"""Replies that may be long: what handlers make them with, element by element.

A handler of such an API is a generator. It yields after each element, so that others are served meanwhile, and each
element is packed when it is made. Its bytes are counted: ``Context.grow_reply`` ends a reply that becomes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from odradek.broker.long_lists import counted
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import schemas
from odradek.wire.chunks import Chunk
from odradek.wire.elements import PIECE_BYTES, Elements
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
    from kio.schema.create_topics.v7.request import CreatableTopic

    from odradek.broker.api import Context
    from odradek.broker.scheduler import Steps

T = TypeVar("T")
Known = dict[Hashable, list[bytes]]
"""Elements that were packed, by what they are about."""


class ReplySize:
    """Counts the bytes of a reply that is packed by hand."""

    def __init__(self, context: Context) -> None:
        self._grow = context.grow_reply
        self._new = 0

    def add(self, size: int) -> None:
        self._new += size
        if self._new >= PIECE_BYTES:
            new, self._new = self._new, 0
            self._grow(new)


def elements(context: Context, *path: str) -> Elements:
    """The elements of an array of the reply; ``path`` are the fields that lead to it."""
    return Elements(schemas.element_packer(context.api_key, context.version, Kind.RESPONSE, *path), context.grow_reply)


def shared_elements(context: Context, *path: str) -> Elements:
    """The elements of an array that stands in several places of the reply. They count in each of these."""
    return Elements(schemas.element_packer(context.api_key, context.version, Kind.RESPONSE, *path))


def reply(context: Context, message: Mapping[str, Any]) -> list[Chunk]:
    """A whole reply, packed."""
    pieces = schemas.encode_pieces(context.api_key, context.version, Kind.RESPONSE, message)
    return cast("list[Chunk]", pieces)


def rows_of_topics(
    context: Context,
    array: str,
    topics: Sequence[CreatableTopic | CreatePartitionsTopic],
    make: Callable[[Mapping[str, int]], Steps[Elements]],
    refused: Callable[[str, KafkaError], Mapping[str, Any]],
) -> Steps[Elements]:
    """The rows of a reply about topics, one for each name. ``make`` makes those of topics that are named once. It gets
    how often each is named, and raises KafkaError where all topics are refused.
    """
    names: Iterable[str] = (topic.name for topic in topics)
    times = yield from counted(names)
    twice = KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
    try:
        rows = yield from make(times)
        for name, count in times.items():
            if count > 1:
                rows.add(refused(name, twice))
            yield None
    except KafkaError as error:
        rows = elements(context, array)
        for topic in topics:
            rows.add(refused(topic.name, error))
            yield None
    return rows


def rows_of_partitions(
    context: Context,
    array: str,
    asked: Iterable[tuple[str, Iterable[T]]],
    answer: Callable[[str, T], Mapping[str, Any]],
    *,
    name: str = "name",
    partitions: str = "partitions",
) -> Steps[Elements]:
    """The rows of a reply about partitions: a row for each topic of ``asked``, with what ``answer`` makes of each part.

    ``name`` and ``partitions`` are the row's fields.
    """
    rows = elements(context, array)
    for topic, parts in asked:
        answers = elements(context, array, partitions)
        for part in parts:
            answers.add(answer(topic, part))
            yield None
        rows.add({name: topic, partitions: answers})
        yield None
    return rows


def each_once(
    out: Elements,
    asked: Iterable[T],
    key: Callable[[T], Hashable],
    describe: Callable[[T], Steps[Mapping[str, Any]]],
    known: Known | None = None,
) -> Steps[None]:
    """Appends an element for each thing asked for. What is asked for again gets the same element again.

    ``known`` are the elements of other arrays of the same kind in this reply.
    """
    known = {} if known is None else known
    for one in asked:
        name = key(one)
        packed = known.get(name)
        if packed is None:
            known[name] = out.add((yield from describe(one)))
        else:
            out.repeat(packed)
        yield None
