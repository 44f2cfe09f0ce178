"""Checks of call arguments. An error names the argument or shows its value, and is raised before a request is sent."""

from __future__ import annotations

import numbers
import operator
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from odradek.client.errors import UnknownTopic
from odradek.client.model import ListedOffset
from odradek.core.ids import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from odradek.batches.encode import Headers

T = TypeVar("T")

_LAST_OFFSET = (1 << 63) - 1
_LONG_S = 1e9


def with_lists(given: T) -> T:
    """Returns the arguments of a call (a tuple, or a mapping from names) with a list in the place of each iterator.

    For a call that another thread runs: a generator of the caller may call the same client, which would wait for ever.
    """
    if isinstance(given, dict):
        return cast(T, {name: list(one) if isinstance(one, Iterator) else one for name, one in given.items()})
    assert isinstance(given, tuple)
    return cast(T, tuple(list(one) if isinstance(one, Iterator) else one for one in given))


def as_whole(number: Any) -> int | None:
    """Returns an integer (Python's or numpy's) as an int; None for any other value, including True and False."""
    if isinstance(number, bool):
        return None
    try:
        return operator.index(number)
    except TypeError:
        return None


def as_partition(given: object) -> TopicPartition:
    """Returns a pair as a TopicPartition.

    Raises TypeError for anything but a name and a number, ValueError if the number is negative."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise TypeError(f"expected a TopicPartition, a topic and a number, not {given!r}")
    topic, number = given[0], as_whole(given[1])
    if not isinstance(topic, str) or number is None:
        raise TypeError(f"expected a TopicPartition, a topic and a number, not {given!r}")
    if number < 0:
        raise ValueError(f"partition {number} of {topic}: a partition's number is at least 0")
    return TopicPartition(topic, number)


def as_partitions(given: object) -> list[TopicPartition]:
    """Returns the partitions as a list.

    Raises TypeError, ValueError like ``as_partition``, and TypeError for a single partition."""
    if isinstance(given, TopicPartition | str) or not isinstance(given, Iterable):
        raise TypeError(f"expected several TopicPartitions, as a list, not {given!r}")
    return [as_partition(one) for one in given]


def as_name(given: object, what: str) -> str:
    """Returns a name. Raises TypeError unless it is a str."""
    if not isinstance(given, str):
        raise TypeError(f"{what}: expected a name, not {given!r}")
    return given


def as_names(given: object, what: str) -> list[str]:
    """Returns the names as a list.

    Raises TypeError also for a single name: otherwise each of its letters would be taken for a name."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what}: expected several names, as a list, not {given!r}")
    return [as_name(one, what) for one in given]


def as_setting(value: object) -> str:
    """Returns a setting's value as text, in the form that brokers use."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_offset(given: Any, tp: TopicPartition) -> OffsetAndMetadata:
    """Returns an offset, alone, in a tuple or as the result of a lookup by time, as OffsetAndMetadata.

    Raises TypeError for anything else, ValueError unless the offset is between 0 and 2**63 - 1."""
    full = OffsetAndMetadata(given.offset, given.leader_epoch) if isinstance(given, ListedOffset) else given
    if as_whole(given) is not None:
        full = OffsetAndMetadata(given)
    elif isinstance(given, tuple) and not isinstance(given, OffsetAndMetadata) and 0 < len(given) <= 3:
        full = OffsetAndMetadata(*given)
    if not isinstance(full, OffsetAndMetadata):
        raise TypeError(f"offset of {tp}: expected a whole number or OffsetAndMetadata, not {given!r}")
    second: Any = full.leader_epoch
    if isinstance(second, str):  # the order of other clients
        raise TypeError(
            f"offset of {tp}: the second field of OffsetAndMetadata is the leader epoch, not {second!r}: give "
            f"OffsetAndMetadata({full.offset!r}, metadata={second!r})"
        )
    offset, epoch = as_whole(full.offset), as_whole(full.leader_epoch)
    if offset is None or epoch is None:
        raise TypeError(f"offset of {tp}: expected a whole number or OffsetAndMetadata, not {given!r}")
    if not 0 <= offset <= _LAST_OFFSET:
        raise ValueError(f"offset {offset} for {tp}: an offset is at least 0 and below 2**63")
    full = full._replace(offset=offset, leader_epoch=epoch)
    metadata: Any = full.metadata
    if metadata is not None and not isinstance(metadata, str):
        raise TypeError(f"metadata of {tp}: expected text, not {metadata!r}")
    return full if metadata is not None else full._replace(metadata="")


def as_seek_target(given: object, leader_epoch: int, tp: TopicPartition) -> OffsetAndMetadata:
    """Returns the target of a seek. ``leader_epoch`` applies unless ``given`` has a place for an epoch of its own.

    Raises TypeError, ValueError."""
    target = as_offset(given, tp)
    if isinstance(given, ListedOffset) or (isinstance(given, tuple) and len(given) > 1):
        return target
    return as_offset(target._replace(leader_epoch=leader_epoch), tp)


def as_offsets(given: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Converts plain numbers to OffsetAndMetadata. Raises TypeError, ValueError."""
    if not isinstance(given, Mapping):
        remedy = ": give its next_offsets" if hasattr(given, "next_offsets") else ""
        if isinstance(given, Iterator):
            remedy = ": the next_offsets of a poll or of a record are such a mapping"
        raise TypeError(f"offsets: expected a mapping of partitions to offsets, not {given!r}{remedy}")
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for one, offset in given.items():
        tp = as_partition(one)
        offsets[tp] = as_offset(offset, tp)
    return offsets


def as_times(given: object) -> dict[TopicPartition, int]:
    """Checks the times, in ms since 1970, of an offset lookup. Raises TypeError, ValueError."""
    if not isinstance(given, Mapping):
        raise TypeError(f"times: expected a mapping of partitions to ms since 1970, not {given!r}")
    times: dict[TopicPartition, int] = {}
    for one, when in given.items():
        tp = as_partition(one)
        time_ms = as_whole(when)
        if time_ms is None:
            remedy = ": give int(time.timestamp() * 1000)" if isinstance(when, datetime) else ""
            raise TypeError(f"time for {tp}: expected ms since 1970 as a whole number, not {when!r}{remedy}")
        if not 0 <= time_ms <= _LAST_OFFSET:
            raise ValueError(f"time {time_ms} for {tp}: expected ms since 1970, at least 0 and below 2**63")
        times[tp] = time_ms
    return times


def check_topics(given: object) -> None:
    """Raises TypeError unless ``topics`` is None, names or a compiled pattern."""
    if given is not None and not isinstance(given, str | Iterable | re.Pattern):
        raise TypeError(f"topics: expected names, or a compiled pattern, not {given!r}")


def as_pattern(given: str | re.Pattern[str] | None, *, is_matched_here: bool) -> str | re.Pattern[str] | None:
    """Compiles a pattern if this client, not the coordinator, matches it (``is_matched_here``). Raises ValueError."""
    if not is_matched_here or given is None:
        return given
    try:
        return re.compile(given)
    except (re.error, OverflowError) as error:
        raise ValueError(f"pattern {given!r}: {error}") from None
    except RecursionError:
        raise ValueError("pattern: groups are nested too deeply") from None


def check_callbacks(**callbacks: object) -> None:
    """Raises TypeError with the name of a callback that cannot be called."""
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise TypeError(f"{name}: expected a function, not {callback!r}")


def check_timeout(seconds: object) -> float:
    """Returns the timeout in seconds. Raises TypeError unless it is a number, ValueError if it is negative."""
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"timeout: expected seconds, not {seconds!r}")
    if not float(seconds) >= 0:
        raise ValueError(f"timeout: expected seconds, at least 0, not {seconds!r}")
    return float(seconds)


def as_timeout_ms(seconds: object) -> int | None:
    """Converts seconds to milliseconds; None stays None. Raises TypeError, ValueError like ``check_timeout``."""
    return None if seconds is None else round(min(check_timeout(seconds), _LONG_S) * 1000)


_CLOSE_MS = 30_000


def call_timeout_ms(timeout: float | None, timeout_ms: int | None, callers: int = 1) -> int | None:
    """Returns the time limit of a call in milliseconds; None for the client's own limit.

    ``timeout`` is in seconds. ``timeout_ms`` is its old name, in milliseconds: version 0.2 will not accept it. A
    DeprecationWarning for it names the code that is ``callers`` calls above this function's caller.

    Raises TypeError, ValueError.
    """
    if timeout_ms is None:
        return as_timeout_ms(timeout)
    if timeout is not None:
        raise TypeError("timeout and timeout_ms are both set: use timeout, in seconds")
    warnings.warn("timeout_ms is now timeout, in seconds", DeprecationWarning, stacklevel=2 + callers)
    return as_timeout_ms(timeout_ms / 1000)


def with_timeout(given: T) -> T:
    """Replaces the former ``timeout_ms`` in the keywords of a call by ``timeout``. For a method's wrapper, whose caller
    gets the warning. Raises TypeError, ValueError like ``call_timeout_ms``."""
    assert isinstance(given, dict)
    former = given.get("timeout_ms")
    if former is None:
        return given
    call_timeout_ms(given.get("timeout"), former, callers=2)
    return cast(T, {**given, "timeout": former / 1000, "timeout_ms": None})


def close_timeout_ms(timeout: float | None, timeout_ms: int | None) -> int:
    """Like ``call_timeout_ms``, for a consumer's ``close``: None means 30 seconds."""
    limit_ms = call_timeout_ms(timeout, timeout_ms, callers=2)
    return _CLOSE_MS if limit_ms is None else limit_ms


def isolation(name: str) -> int:
    """Returns the protocol's number of ``read_uncommitted`` or ``read_committed``. Raises ValueError."""
    try:
        return {"read_uncommitted": 0, "read_committed": 1}[name]
    except KeyError:
        raise ValueError(f"isolation level {name!r}: expected read_uncommitted or read_committed") from None


# --- records that a producer sends -----------------------------------------------------------------------------


def check_bytes(name: str, content: object) -> None:
    """Raises TypeError unless ``content`` is bytes or None."""
    if content is not None and not isinstance(content, bytes | bytearray):
        raise TypeError(f"{name}: expected bytes or None, not {type(content).__name__}: encode it first")


def whole(name: str, given: object, unit: str = "") -> int:
    """Returns a whole number as an int. Raises TypeError."""
    number = as_whole(given)
    if number is None:
        raise TypeError(f"{name}: expected a whole number{unit}, not {given!r}")
    return number


def chosen_partition(topic: str, partition: int, count: int) -> int:
    """Checks a partition that the caller has chosen. Raises TypeError, UnknownTopic."""
    number = whole("partition", partition)
    if not 0 <= number < count:
        raise UnknownTopic(f"topic {topic} has no partition {number} (it has {count})")
    return number


def as_headers(headers: Headers | Mapping[str, bytes | None] | None) -> Headers:
    """Converts headers to pairs. Raises TypeError."""
    if headers is None:
        return ()
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"headers: expected pairs of a name and bytes, or a mapping, not {pair!r}")
    return pairs
