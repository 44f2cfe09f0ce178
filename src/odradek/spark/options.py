"""The options of ``format("odradek")`` for reads: those of Spark's Kafka source, and additional ones. No I/O.

Spark converts option names to lower case before a Python data source gets them, so names are compared without case.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any
from uuid import UUID

from odradek.batches.columns import COLUMNS, DEFAULT_COLUMNS
from odradek.client.config import SECURITY, ClientConfig, take_security
from odradek.client.settings.java_settings import effective
from odradek.core.errors import ConfigError
from odradek.core.ids import EARLIEST, LATEST, RESET_POLICIES, TopicPartition
from odradek.spark.offsets.patterns import java_pattern
from odradek.spark.offsets.zookeeper_start import LAST_READ, OPTIONS, PREFIX, ZooKeeperStart, zookeeper_start
from odradek.text.json_depth import NameRepeated, parse_json
from odradek.text.printable import shortened

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_MEANT = {"topic": "subscribe", "topics": "subscribe"}
"""Names that other readers have for an option of the source."""
STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")  # in order of precedence
ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
COMMITTED_BY_TABLE = "committedByTable"
OTHERS = (
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "columns",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",  # accepted without effect: reading joins no group
    "commitOffsets",
    "onGroupReset",
    "pushFilters",
    "maxTimestampDisorder",
    "onBadTimestamp",
    "maxBytesPerTrigger",
    "strictOptions",
    "progressTo",  # for the pipelines: see progress.py
    COMMITTED_BY_TABLE,  # for the pipelines: the source only reads the group's offsets, to follow resets
    "groupLook",  # for the pipelines: see group_look.py
    "lossesTo",  # for the pipelines: see loss_file.py
    "topicIds",  # for the pipelines: the ids of the topics to read, so that a topic created again is not read
)
KNOWN = {name.lower(): name for name in (*SUBSCRIPTIONS, *STARTING, *ENDING, *OTHERS, *OPTIONS)}

REFUSED = {
    "key.deserializer": "keys are always bytes; decode them with DataFrame operations",
    "value.deserializer": "values are always bytes; decode them with DataFrame operations",
    "enable.auto.commit": "offsets are committed after each finished micro-batch, if kafka.group.id is given",
    "interceptor.classes": "interceptors could change records, and a range must return the same records each time",
}
# Settings of Kafka's consumer that have no effect here, or that Spark's plan decides. They are accepted, so that a
# query only has to change its format. Settings of SASL and TLS are not among them: ignoring them would be unsafe.
WITHOUT_EFFECT = frozenset({
    "allow.auto.create.topics", "auto.commit.interval.ms", "client.dns.lookup", "connections.max.idle.ms",
    "enable.metrics.push", "exclude.internal.topics", "fetch.max.bytes", "fetch.min.bytes", "group.instance.id",
    "group.protocol", "group.remote.assignor", "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records",
    "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms", "partition.assignment.strategy",
    "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "send.buffer.bytes",
    "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
})  # fmt: skip


class OnGroupReset(StrEnum):
    """The reaction of a query to another client that moved its group's offsets.

    ``asked``: the query follows only commits whose metadata asks for a reset. ``follow``: it follows every commit.
    ``ignore``: it continues from its checkpoint. ``fail``: it ends.
    """

    ASKED = "asked"
    FOLLOW = "follow"
    IGNORE = "ignore"
    FAIL = "fail"


class Start(StrEnum):
    """The kinds of starting and ending positions."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    ZOOKEEPER = "zookeeper"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Position:
    """A start or end of a read. ``offsets`` may have −1 (latest) and −2 (earliest).

    ``timestamp_ms`` is for all partitions.
    """

    kind: Start
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamps_ms: Mapping[TopicPartition, int] = field(default_factory=dict)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of one read. Times are milliseconds; limits are None if they are not given.

    ``columns``: the columns of the rows, in this order.
    ``null_bad_timestamps``: a timestamp that no column of microseconds holds becomes null, and does not end the query.
    ``commit_offsets``: the source commits to its group. ``offsets_in_transaction``: the transactions of
    ``transactional_writer`` do that instead. ``offsets_by_table``: a pipeline does it after its table has the rows.
    """

    client: ClientConfig
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Position = Position(Start.EARLIEST)
    ending: Position = Position(Start.LATEST)
    zookeeper: ZooKeeperStart | None = None
    latest_without_record: bool = False
    group_id: str | None = None
    auto_offset_reset: str = "earliest"
    commit_offsets: bool = False
    offsets_in_transaction: bool = False
    offsets_by_table: bool = False
    on_group_reset: OnGroupReset = OnGroupReset.IGNORE
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    push_filters: bool = False
    max_timestamp_disorder_ms: int | None = None
    null_bad_timestamps: bool = False
    isolation_level: str = "read_uncommitted"
    poll_timeout_ms: int = 120_000
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 10
    progress_to: str | None = None
    group_look: str | None = None
    losses_to: str | None = None
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)


def parse_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Checks the user's options. Raises ConfigError with the option's name, and the nearest name if it is unknown.

    ``streaming`` is None while it is not known whether a stream or a batch query is read.
    """
    options = {name.lower(): value for name, value in given.items()}
    check_names(options, KNOWN, REFUSED, ("kafka.bootstrap.servers", "kafka.group.id"))
    kafka = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    starting = _position(options, STARTING, "latest" if streaming else "earliest")
    ending = _position(options, ENDING, "latest")
    group_id = kafka.pop("group.id", None)
    auto_offset_reset = _auto_offset_reset(kafka.pop("auto.offset.reset", None), starting)
    isolation_level = _one_of("kafka.isolation.level", kafka.pop("isolation.level", "read_uncommitted"), _ISOLATION)
    _check_positions(options, starting, ending, group_id, streaming)
    committing = _commit_offsets(options, group_id, streaming)
    subscription = _subscription(options)
    return ReadOptions(
        client=client_config(kafka, strict=flag(options, "strictOptions", True)),
        **subscription,
        starting=starting,
        ending=ending,
        zookeeper=_zookeeper(options, starting, group_id, subscription),
        latest_without_record=_strategy(options),
        group_id=group_id,
        auto_offset_reset=auto_offset_reset,
        commit_offsets=committing == "true" and not flag(options, COMMITTED_BY_TABLE, False),
        offsets_by_table=committing == "true" and flag(options, COMMITTED_BY_TABLE, False),
        offsets_in_transaction=committing == "transaction",
        on_group_reset=_on_group_reset(options, committing != "false"),
        max_offsets_per_trigger=_number(options, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_bytes(options, "maxBytesPerTrigger"),
        min_offsets_per_trigger=_number(options, "minOffsetsPerTrigger"),
        max_trigger_delay_ms=_or(_duration_ms(options, "maxTriggerDelay"), 15 * 60_000),
        min_partitions=_number(options, "minPartitions"),
        max_records_per_partition=_number(options, "maxRecordsPerPartition"),
        fail_on_data_loss=flag(options, "failOnDataLoss", True),
        columns=_columns(options),
        push_filters=flag(options, "pushFilters", False),
        max_timestamp_disorder_ms=_duration_ms(options, "maxTimestampDisorder"),
        null_bad_timestamps=_one_of("onBadTimestamp", options.get("onbadtimestamp", "fail"), _BAD_TIME) == "null",
        isolation_level=isolation_level,
        poll_timeout_ms=_number(options, "kafkaConsumer.pollTimeoutMs") or 120_000,
        fetch_offset_retries=_or(_number(options, "fetchOffset.numRetries", 0), 3),
        fetch_offset_retry_interval_ms=_or(_number(options, "fetchOffset.retryIntervalMs", 0), 10),
        progress_to=options.get("progressto"),
        group_look=options.get("grouplook"),
        losses_to=options.get("lossesto"),
        topic_ids=_topic_ids(options.get("topicids")),
    )


def _topic_ids(text: str | None) -> dict[str, UUID]:
    example = '{"topicA":"0190a3b2-7c1d-7e2f-8a3b-4c5d6e7f8091"}'
    try:
        return {} if text is None else {name: UUID(given) for name, given in _json("topicIds", text, example).items()}
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"topicIds: expected for example {example}, got {shortened(text or '')}") from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the columns of the rows: those named, or all but the headers, which includeHeaders adds."""
    with_headers = flag(options, "includeHeaders", False)
    text = options.get("columns")
    if text is None:
        return COLUMNS if with_headers else DEFAULT_COLUMNS
    known = {name.lower(): name for name in COLUMNS}
    chosen: list[str] = []
    for given in (part.strip() for part in text.split(",")):
        name = known.get(given.lower())
        if name is None:
            near = difflib.get_close_matches(given.lower(), known, 1)
            hint = f": did you mean {known[near[0]]}?" if near else f": the columns are {', '.join(COLUMNS)}"
            raise ConfigError(f"columns={shortened(text)}: there is no column {given!r}{hint}")
        if name in chosen:
            raise ConfigError(f"columns={shortened(text)}: {name} is named twice: leave one out")
        chosen.append(name)
    if with_headers and "headers" not in chosen:
        raise ConfigError(f"columns={shortened(text)} has no headers, and includeHeaders=true: leave one of them out")
    return tuple(chosen)


_BAD_TIME = ("fail", "null")
_ISOLATION = ("read_uncommitted", "read_committed")


def check_names(
    options: Mapping[str, str], known: Mapping[str, str], refused: Mapping[str, str], others: tuple[str, ...]
) -> None:
    """Checks the names of options. Raises ConfigError for refused names, and for unknown ones if ``strictOptions``.

    ``known``: our names, lower case → as documented; ``others``: names that users often write without ``kafka.``.
    """
    for name in options:
        kafka_name = name.removeprefix("kafka.")
        if kafka_name != name and kafka_name in refused:
            raise ConfigError(f"option {name} is not supported: {refused[kafka_name]}")
    if not flag(options, "strictOptions", True):
        return
    for name in options:
        if name not in known and not name.startswith("kafka."):
            near = (
                [_MEANT[name]] if _MEANT.get(name) in known else difflib.get_close_matches(name, [*known, *others], 1)
            )
            hint = f"; did you mean {known.get(near[0], near[0])}?" if near else ""
            raise ConfigError(f"unknown option {name}{hint} (strictOptions=false lets unknown options pass)")


def client_config(
    kafka: Mapping[str, str],
    without_effect: Iterable[str] = WITHOUT_EFFECT,
    others: Iterable[str] = ("group.id", "isolation.level"),
    *,
    strict: bool = True,
) -> ClientConfig:
    """Returns the client's configuration from ``kafka.*`` settings.

    ``others``: settings that are not in ``kafka``, but that the message about an unknown setting may suggest. Raises
    ConfigError; for unknown settings only if ``strict``, for settings of SASL and TLS always: a user who wants
    encryption must not get a plain connection.
    """
    if not kafka.get("bootstrap.servers"):
        raise ConfigError("option kafka.bootstrap.servers is required, for example 127.0.0.1:9092")
    names = {item.name.replace("_", ".") for item in fields(ClientConfig) if item.name != SECURITY}
    security, plain = take_security(kafka)
    kafka = effective(plain, {name.replace(".", "_") for name in (*names, *without_effect)})
    if secure := sorted(name for name in kafka if name.startswith(("sasl.", "ssl."))):
        raise ConfigError(
            f"kafka.{secure[0]} has no effect without kafka.security.protocol: set it to SSL, SASL_SSL or "
            "SASL_PLAINTEXT, or leave both out"
        )
    settings: dict[str, Any] = {SECURITY: security}
    for name, value in kafka.items():
        if name in names:
            settings[name] = value
        elif strict and name not in without_effect:
            near = difflib.get_close_matches(name, [*names, *without_effect, *others, "security.protocol"], 1)
            hint = f"; did you mean kafka.{near[0]}?" if near else ""
            raise ConfigError(f"unknown option kafka.{name}{hint} (strictOptions=false lets unknown options pass)")
    return ClientConfig.of(settings)


def _subscription(options: Mapping[str, str]) -> dict[str, Any]:
    given = [name for name in SUBSCRIPTIONS if name.lower() in options]
    if len(given) != 1:
        found = f"not {' and '.join(given)} together" if given else "none was given"
        raise ConfigError(f"exactly one of {', '.join(SUBSCRIPTIONS)} is required; {found}")
    name, text = given[0], options[given[0].lower()].strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise ConfigError("subscribe: no topic given")
        return {"topics": topics}
    if name == "subscribePattern":
        if not text:
            raise ConfigError("subscribePattern: no pattern given")
        try:
            java_pattern(text)
        except ConfigError as error:
            raise ConfigError(f"subscribePattern: {error}") from None
        return {"pattern": text}
    return {"assigned": _assignment(text)}


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    example = '{"topicA":[0,1],"topicB":[2]}'
    value = _json("assign", text, example)
    assigned: list[TopicPartition] = []
    for topic, partitions in value.items():
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise ConfigError(f"assign: expected for example {example}, got {text}")
        assigned += [TopicPartition(topic, number) for number in partitions]
    if not assigned:
        raise ConfigError("assign: no partition given")
    return tuple(sorted(set(assigned)))


def _position(options: Mapping[str, str], names: tuple[str, str, str], default: str) -> Position:
    """Returns the starting or ending position. If several of the three options are given, the first of them decides."""
    for_all, by_timestamp, by_offset = names
    if for_all.lower() in options:
        return Position(Start.TIMESTAMP, timestamp_ms=_number(options, for_all, 0, " (milliseconds since 1970)"))
    if by_timestamp.lower() in options:
        stamps = _per_partition(by_timestamp, options[by_timestamp.lower()], '{"topicA":{"0":1000}}', 0)
        return Position(Start.TIMESTAMP, timestamps_ms=stamps)
    text = options.get(by_offset.lower(), default).strip()
    words = ("earliest", "latest", "committed", "zookeeper")[: None if by_offset == "startingOffsets" else 2]
    if text.lower() in words:
        return Position(Start(text.lower()))
    if not text.startswith("{"):
        raise ConfigError(f"{by_offset}: expected {', '.join(words)} or JSON, not {text!r}")
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    return Position(Start.OFFSETS, offsets=_per_partition(by_offset, text, example, EARLIEST))


def _per_partition(name: str, text: str, example: str, smallest: int) -> dict[TopicPartition, int]:
    result: dict[TopicPartition, int] = {}
    for topic, partitions in _json(name, text, example).items():
        if not isinstance(partitions, dict):
            raise ConfigError(f"{name}: expected for example {example}, got {text}")
        for number, value in partitions.items():
            if not number.isdigit() or type(value) is not int or value < smallest:
                raise ConfigError(f"{name}: expected for example {example}, got {text}")
            result[TopicPartition(topic, int(number))] = value
    return result


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = parse_json(text, distinct=True)
    except NameRepeated as error:
        raise ConfigError(f"{name}: {error}: leave one of them out") from error
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: expected for example {example}, got {shortened(text)}")
    return value


def _check_positions(
    options: Mapping[str, str], starting: Position, ending: Position, group_id: str | None, streaming: bool | None
) -> None:
    """Refuses ``committed`` without a group, and positions that Spark's own source refuses, such as an end of a stream.

    Raises ConfigError.
    """
    if starting.kind is Start.COMMITTED and group_id is None:
        raise ConfigError("startingOffsets=committed needs kafka.group.id: the group with the committed offsets")
    if streaming:
        for name in ENDING:
            if name.lower() in options:
                raise ConfigError(f"{name} is for batch reads; a stream has no end")
    if streaming is not False:
        return
    if starting.kind is Start.LATEST or LATEST in starting.offsets.values():
        raise ConfigError("startingOffsets: a batch read cannot start at latest (-1)")
    if ending.kind is Start.EARLIEST or EARLIEST in ending.offsets.values():
        raise ConfigError("endingOffsets: a batch read cannot end at earliest (-2)")


def _zookeeper(
    options: Mapping[str, str], starting: Position, group_id: str | None, subscription: Mapping[str, Any]
) -> ZooKeeperStart | None:
    """Returns the settings of startingOffsets=zookeeper, None for other starts. Raises ConfigError."""
    if starting.kind is Start.ZOOKEEPER:
        topics = {*subscription.get("topics", ()), *(tp.topic for tp in subscription.get("assigned", ()))}
        return zookeeper_start(options, group_id, topics, last_read=flag(options, LAST_READ, False))
    for name in options:
        if name.startswith(PREFIX):
            raise ConfigError(f"option {KNOWN.get(name, name)} has no effect without startingOffsets=zookeeper")
    return None


def _auto_offset_reset(given: str | None, starting: Position) -> str:
    if given is None:
        return "earliest"
    if starting.kind not in (Start.COMMITTED, Start.ZOOKEEPER):
        raise ConfigError(
            "option kafka.auto.offset.reset is not supported without startingOffsets=committed or zookeeper: "
            "set the start with startingOffsets"
        )
    return _one_of("kafka.auto.offset.reset", given, RESET_POLICIES)


def _commit_offsets(options: Mapping[str, str], group_id: str | None, streaming: bool | None) -> str:
    """Returns the value of ``commitOffsets``."""
    given = options.get("commitoffsets", str(group_id is not None))
    chosen = _one_of("commitOffsets", given, ("true", "false", "transaction"))
    if chosen != "false" and group_id is None:
        raise ConfigError(f"commitOffsets={chosen} needs kafka.group.id: the group to commit to")
    if chosen == "transaction" and streaming is False:
        raise ConfigError("commitOffsets=transaction is for streams that odradek.spark.transactional_writer writes")
    return chosen


def _on_group_reset(options: Mapping[str, str], commit_offsets: bool) -> OnGroupReset:
    default = OnGroupReset.ASKED if commit_offsets else OnGroupReset.IGNORE
    chosen = OnGroupReset(
        _one_of("onGroupReset", options.get("ongroupreset", default.value), [item.value for item in OnGroupReset])
    )
    if chosen is not OnGroupReset.IGNORE and not commit_offsets:
        # The mark in our commits distinguishes a reset from an old commit; without our commits there is no mark.
        raise ConfigError(f"onGroupReset={chosen.value} needs kafka.group.id, and commitOffsets=true or transaction")
    return chosen


def _strategy(options: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    return _one_of(name, options.get(name.lower(), "error"), ("error", "latest")) == "latest"


def _one_of(name: str, value: str, words: tuple[str, ...] | list[str]) -> str:
    word = value.strip().lower()
    if word not in words:
        raise ConfigError(f"{name}: expected {', '.join(words)}, not {value!r}")
    return word


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(name, options.get(name.lower(), str(default)), ("true", "false")) == "true"


def _number(options: Mapping[str, str], name: str, smallest: int = 1, unit: str = "") -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < smallest:
        raise ConfigError(f"{name}: expected a whole number of at least {smallest}{unit}, not {text!r}")
    return int(text)


def _bytes(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    return None if text is None else parse_size(name, text)


def parse_size(name: str, text: str) -> int:
    """Parses Spark's sizes to bytes: a whole number, with k, m, g or t (or kb, mb, …) for powers of 1024.

    Raises ConfigError with ``name``.
    """
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([kmgt]?)b?\s*", text.lower())
    if match is None or int(match[1]) == 0:
        raise ConfigError(
            f"{name}: expected a size such as 64m or 1048576, above 0, with at most 12 digits, not {shortened(text)!r}"
        )
    return int(int(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


_UNITS_MS: Mapping[str, Callable[[int], int]] = {
    "us": lambda n: n // 1000,
    "ms": lambda n: n,
    "s": lambda n: n * 1000,
    "m": lambda n: n * 60_000,
    "min": lambda n: n * 60_000,
    "h": lambda n: n * 3_600_000,
    "d": lambda n: n * 86_400_000,
}


def _duration_ms(options: Mapping[str, str], name: str) -> int | None:
    """Parses Spark's time strings to ms: a number with us, ms, s, m, min, h or d; without a unit, milliseconds."""
    text = options.get(name.lower())
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,12})\s*([a-z]*)\s*", text.lower())
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ConfigError(f"{name}: expected a time such as 15m or 30s, not {text!r}")
    return _UNITS_MS[match[2] or "ms"](int(match[1]))
