"""Functions for handlers with long replies, which are made element by element.

Such a handler is a generator. It yields after each element, so that the broker serves other clients meanwhile. Each
element is packed as soon as it is made. Its bytes are counted, and ``Context.grow_reply`` ends a reply that gets too
long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from odradek.broker.loop.long_lists import count_in_steps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import schemas
from odradek.wire.chunks import Chunk
from odradek.wire.elements import PIECE_BYTES, Elements
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
    from kio.schema.create_topics.v7.request import CreatableTopic

    from odradek.broker.handlers.api import Context
    from odradek.broker.loop.scheduler import Steps

T = TypeVar("T")
Known = dict[Hashable, list[bytes]]
"""The parts of each packed element, by the key of its item."""


class ReplySize:
    """Counts the bytes of a reply that its handler packs itself."""

    def __init__(self, context: Context) -> None:
        self._grow = context.grow_reply
        self._new = 0

    def add(self, size: int) -> None:
        self._new += size
        if self._new >= PIECE_BYTES:
            new, self._new = self._new, 0
            self._grow(new)


def elements(context: Context, *path: str) -> Elements:
    """Returns an empty list of elements for an array of the reply. ``path`` has the fields that lead to the array."""
    return Elements(schemas.element_packer(context.api_key, context.version, Kind.RESPONSE, *path), context.grow_reply)


def shared_elements(context: Context, *path: str) -> Elements:
    """Returns an empty list of elements for an array that the reply contains several times.

    The bytes of the array are counted each time the reply includes it."""
    return Elements(schemas.element_packer(context.api_key, context.version, Kind.RESPONSE, *path))


def reply(context: Context, message: Mapping[str, object]) -> list[Chunk]:
    """Packs a whole reply."""
    pieces = schemas.encode_pieces(context.api_key, context.version, Kind.RESPONSE, message)
    return cast("list[Chunk]", pieces)


def rows_of_topics(
    context: Context,
    array: str,
    topics: Sequence[CreatableTopic | CreatePartitionsTopic],
    make: Callable[[Mapping[str, int]], Steps[Elements]],
    refused: Callable[[str, KafkaError], Mapping[str, object]],
) -> Steps[Elements]:
    """Makes the rows of a reply about topics: one for each name, or one for each topic if all topics are refused.

    ``make`` gets the number of times that each name occurs. It makes the rows of the names that occur once. It raises
    KafkaError if all topics are refused. ``refused`` makes the row of a refused topic.
    """
    names: Iterable[str] = (topic.name for topic in topics)
    times = yield from count_in_steps(names)
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
    make: Callable[[str, T], Mapping[str, object]],
    *,
    name: str = "name",
    partitions: str = "partitions",
) -> Steps[Elements]:
    """Makes the rows of a reply about partitions: one for each topic of ``asked``.

    ``make`` returns the element of each partition. ``name`` and ``partitions`` are the names of the row's fields.
    """
    rows = elements(context, array)
    for topic, parts in asked:
        made = elements(context, array, partitions)
        for part in parts:
            made.add(make(topic, part))
            yield None
        rows.add({name: topic, partitions: made})
        yield None
    return rows


def each_once(
    out: Elements,
    asked: Iterable[T],
    key: Callable[[T], Hashable],
    describe: Callable[[T], Steps[Mapping[str, object]]],
    known: Known | None = None,
) -> Steps[None]:
    """Appends an element for each item of ``asked``. A repeated item gets the same packed element again.

    ``known`` has the elements that other arrays of the reply already contain. The new elements are added to ``known``.
    """
    known = {} if known is None else known
    for item in asked:
        name = key(item)
        packed = known.get(name)
        if packed is None:
            known[name] = out.add((yield from describe(item)))
        else:
            out.repeat(packed)
        yield None
