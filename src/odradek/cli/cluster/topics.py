"""``odradek topics``: topics of a Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from odradek.cli.cluster.elections import election_rows, failure_lines
from odradek.cli.options import (
    CONTEXT,
    LAST_INT16,
    LAST_INT32,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    Yes,
    confirm,
    connect,
    given_names,
    named_values,
    parse_partitions,
    table_or_blocks,
)
from odradek.cli.terminal import EXIT_FAILED, CommandError, error_line, note, note_table, print_json, progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from odradek.client.admin import Admin
    from odradek.client.model import ConfigEntry, PartitionDescription, TopicDescription
    from odradek.core.errors import KafkaError
    from odradek.core.ids import TopicPartition

    _Described: TypeAlias = tuple[TopicDescription, list[dict[str, object]], list[ConfigEntry]]
    """A topic, the rows of its partitions, and its settings."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Topics of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek topics create flights --partitions 6 -b 127.0.0.1:9092",
)

Names = Annotated[list[str] | None, typer.Argument(metavar="TOPIC…", help="The topics.")]
TopicOption = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="A topic, as in Kafka's tools. Repeatable.")
]
PartitionNames = Annotated[
    list[str] | None, typer.Argument(metavar="TOPIC[:0,1]…", help="The topics, or some of their partitions.")
]
PartitionOption = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, as in Kafka's tools. Repeatable.")
]
Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A topic setting by Kafka's name. Repeatable."),
]


def _topics(names: list[str] | None, options: list[str] | None) -> list[str]:
    """Returns the topics, given as arguments or with --topic. Raises CommandError."""
    given = [*(names or []), *(options or [])]
    if not given:
        raise CommandError("missing argument 'TOPIC…': name the topics, as arguments or with --topic")
    return given_names(given, "TOPIC")


def _settings(pairs: list[str] | None) -> dict[str, str]:
    return named_values(pairs, "--config", ", for example retention.ms=86400000")


def _assignments(text: str | None) -> list[list[int]]:
    """Returns the brokers of each partition, as kafka-topics.sh reads them. Raises CommandError."""
    rows = [] if text is None else [part.strip().split(":") for part in text.split(",")]
    if any(not (one.isascii() and one.isdigit()) for row in rows for one in row):
        raise CommandError(
            f"--replica-assignment {text!r}: expected the brokers of each partition, for example 1:2,2:3 for two "
            "partitions with two replicas"
        )
    return [list(map(int, row)) for row in rows]


def _with_hint(admin: Admin, error: KafkaError, settings: Iterable[str]) -> KafkaError:
    """Returns the error. If it reports an unknown setting, adds the nearest name among the settings of a topic.

    Brokers do not suggest a name.
    """
    unknown = next((name for name in settings if error.message.endswith(f"Unknown topic config name: {name}")), None)
    topic = None if unknown is None else next(iter(admin.describe_topics()), None)
    if unknown is None or topic is None:
        return error
    import difflib

    known = [entry.name for entry in admin.describe_topic_configs([topic])[topic]]
    near = difflib.get_close_matches(unknown, known, n=1)
    return type(error)(error.code, f"{error.message}; did you mean {near[0]}?") if near else error


def _check_names(admin: Admin, topic: str, settings: list[str]) -> None:
    """Raises CommandError for a setting that no topic has: a broker deletes such a value without an error."""
    if not settings:
        return
    from odradek.text.similar_names import nearest

    known = [entry.name for entry in admin.describe_topic_configs([topic])[topic]]
    for name in settings:
        if name not in known:
            remedy = nearest(name, known) or f": odradek topics describe {topic} --all-configs lists them"
            raise CommandError(f"--delete-config {name}: a topic has no such setting{remedy}")


@app.command(
    name="list",
    epilog="Examples:\n\n\b\n"
    "  odradek topics list -b 127.0.0.1:9092\n"
    "  odradek topics list --exclude-internal -b 127.0.0.1:9092 --json",
)
def list_(
    *,
    bootstrap: Bootstrap,
    exclude_internal: Annotated[bool, typer.Option("--exclude-internal", help="Omit Kafka's internal topics.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """List topics with the number of their partitions and replicas."""
    with connect(bootstrap, timeout_ms, command_config) as admin:
        topics = [t for t in admin.describe_topics().values() if not (exclude_internal and t.internal)]
    if as_json:
        print_json([_summary(topic) for topic in topics], indent=2)
        return
    rows = [(t.name, str(len(t.partitions)), str(_replicas(t)), "yes" if t.internal else "") for t in topics]
    note_table(table_or_blocks(("TOPIC", "PARTITIONS", "REPLICAS", "INTERNAL"), rows, right=frozenset({1, 2})))


def _replicas(topic: TopicDescription) -> int:
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


def _summary(topic: TopicDescription) -> dict[str, object]:
    topic_id = str(topic.topic_id) if topic.topic_id is not None else None
    counts = {"partitions": len(topic.partitions), "replicas": _replicas(topic)}
    return {"topic": topic.name, "topic_id": topic_id, **counts, "internal": topic.internal}


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek topics create flights -b 127.0.0.1:9092\n"
    "  odradek topics create flights --partitions 6 --config retention.ms=86400000 -b 127.0.0.1:9092\n"
    "  odradek topics create flights --replica-assignment 1:2:3,2:3:1 -b 127.0.0.1:9092\n"
    "  odradek topics create --topic flights --bootstrap-server 127.0.0.1:9092",
)
def create(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    options: TopicOption = None,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=LAST_INT32, metavar="N", help="Partitions of each topic. Default: the broker's."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, max=LAST_INT16, metavar="N", help="Replicas of each partition. Default: the broker's."),
    ] = None,
    replica_assignment: Annotated[
        str | None,
        typer.Option(
            "--replica-assignment",
            metavar="1:2,2:3,…",
            help="The brokers of each partition, the preferred leader first: in place of both numbers.",
        ),
    ] = None,
    config: Configs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Ignore topics that already exist.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Create topics."""
    from odradek.client.model import NewTopic
    from odradek.core.errors import ErrorCode, KafkaError

    settings = _settings(config)
    assignments = _assignments(replica_assignment)
    if assignments and (partitions is not None or replication_factor is not None):
        raise CommandError("--replica-assignment takes the place of --partitions and --replication-factor")
    made: list[str] = []
    chosen = _topics(names, options)
    rounds = [(name, only_check) for only_check in ([True, False] if len(chosen) > 1 else [False]) for name in chosen]
    with connect(bootstrap, timeout_ms, command_config) as admin:
        for name, only_check in rounds:  # of several topics, none is created if one would be refused
            try:
                new = NewTopic(name, partitions or -1, replication_factor or -1, settings, assignments)
                admin.create_topics([new], validate_only=only_check)
                made += [] if only_check else [name]
            except KafkaError as error:
                if error.code is not ErrorCode.topic_already_exists or not if_not_exists:
                    raise _with_hint(admin, error, settings) from None
    if as_json:
        print_json({"created": made})
    else:
        note(f"Created {', '.join(made)}." if made else "All topics exist already.")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek topics describe flights -b 127.0.0.1:9092\n"
    "  odradek topics describe flights --all-configs -b 127.0.0.1:9092\n"
    "  odradek topics describe --under-min-isr -b 127.0.0.1:9092",
)
def describe(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    options: TopicOption = None,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="Also show settings that the topic does not set.")
    ] = False,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with replicas that are not in sync.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only partitions that refuse acks=all, or have no leader.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr", help="Only partitions with just min.insync.replicas in sync.")
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable", help="Only partitions without a leader that is alive.")
    ] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the partitions of topics with leaders, replicas and offsets, and the topics' own settings.

    With --under-replicated, --under-min-isr, --at-min-isr or --unavailable, shows the partitions that one of them
    names, of the given topics or of all, without offsets and settings.
    """
    wanted = ReplicaFilter(under_replicated, under_min_isr, at_min_isr, unavailable)
    chosen = None if any(wanted) and not (names or options) else _topics(names, options)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        topics = admin.describe_topics(chosen, eligible=True)
        configs = admin.describe_topic_configs(list(topics)) if topics else {}
        if any(wanted):
            alive = {node.node_id for node in admin.describe_cluster().nodes}
            found = [
                (topic, _partition_rows(wanted.of(topic, configs[topic.name], alive))) for topic in topics.values()
            ]
            described: list[_Described] = [(topic, rows, []) for topic, rows in found if rows]
        else:
            described = _with_offsets(admin, topics.values(), configs, all_configs=all_configs)
    if as_json:
        print_json([_described_json(*one) for one in described], indent=2)
        return
    for topic, rows, shown in described:
        _print_topic(topic, rows, shown)
    if not described:
        note(f"No partition is {wanted}.")


def _with_offsets(
    admin: Admin,
    topics: Iterable[TopicDescription],
    configs: Mapping[str, Iterable[ConfigEntry]],
    *,
    all_configs: bool,
) -> list[_Described]:
    from odradek.core.errors import OdradekError
    from odradek.core.ids import EARLIEST, LATEST, TopicPartition

    led = [TopicPartition(t.name, p.partition) for t in topics for p in t.partitions if p.leader >= 0]
    starts, ends = {}, {}
    try:
        starts = {tp: row.offset for tp, row in admin.list_offsets(dict.fromkeys(led, EARLIEST)).items()}
        ends = {tp: row.offset for tp, row in admin.list_offsets(dict.fromkeys(led, LATEST)).items()}
    except OdradekError as error:  # a leader that has just died must not hide the state of the replicas
        error_line(f"some offsets are not shown: {error}")
    described = []
    for topic in topics:
        rows = _partition_rows(topic.partitions)
        for row, partition in zip(rows, topic.partitions, strict=True):
            tp = TopicPartition(topic.name, partition.partition)
            row |= {"log_start": starts.get(tp), "log_end": ends.get(tp)}
        described.append((topic, rows, [c for c in configs[topic.name] if all_configs or c.source == "topic"]))
    return described


def _partition_rows(partitions: Iterable[PartitionDescription]) -> list[dict[str, object]]:
    return [
        {
            "partition": p.partition,
            "leader": p.leader,
            "replicas": list(p.replicas),
            "isr": list(p.isr),
            "elr": None if p.elr is None else list(p.elr),
            "last_known_elr": None if p.last_known_elr is None else list(p.last_known_elr),
        }
        for p in partitions
    ]


def _described_json(
    topic: TopicDescription, rows: list[dict[str, object]], shown: list[ConfigEntry]
) -> dict[str, object]:
    return {**_summary(topic), "partitions": rows, "configs": {c.name: c.value for c in shown}}


class ReplicaFilter(NamedTuple):
    """Which partitions are shown, as kafka-topics.sh chooses them: those to which one of these applies."""

    under_replicated: bool
    under_min_isr: bool
    at_min_isr: bool
    unavailable: bool

    def of(
        self, topic: TopicDescription, configs: Iterable[ConfigEntry], alive: Collection[int]
    ) -> list[PartitionDescription]:
        """Returns partitions. ``alive``: the brokers that are not fenced."""
        values = {config.name: config.value for config in configs}
        least = int(values.get("min.insync.replicas") or 1)
        return [p for p in topic.partitions if self._applies(p, least, alive)]

    def _applies(self, p: PartitionDescription, least: int, alive: Collection[int]) -> bool:
        return (
            (self.under_replicated and len(p.isr) < len(p.replicas))
            or (self.under_min_isr and (p.leader < 0 or len(p.isr) < least))
            or (self.at_min_isr and len(p.isr) == least)
            or (self.unavailable and p.leader not in alive)
        )

    def __str__(self) -> str:
        names = ("under-replicated", "under min.insync.replicas", "at min.insync.replicas", "unavailable")
        named = zip(self, names, strict=True)
        return " or ".join(name for is_set, name in named if is_set)


def _print_topic(topic: TopicDescription, rows: list[dict[str, object]], shown: list[ConfigEntry]) -> None:
    note("", f"Topic {topic.name}  id {topic.topic_id or '-'}{'  internal' if topic.internal else ''}")
    for config in shown:
        note(f"  {config.name}={'(secret)' if config.value is None else config.value}  ({config.source})")
    has_last = any(row["last_known_elr"] for row in rows)
    optional = {"elr": _replicas(topic) > 1 or has_last, "last_known_elr": has_last}
    names = [name for name in rows[0] if optional.get(name, True)] if rows else []
    lines = [tuple(_cell(row[name]) for name in names) for row in rows]
    numbers = ("partition", "leader", "log_start", "log_end")
    right = frozenset(at for at, name in enumerate(names) if name in numbers)
    note_table(table_or_blocks(tuple(name.upper().replace("_", "-") for name in names), lines, right=right))


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None or value == -1 else str(value)


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek topics alter flights --partitions 12 -b 127.0.0.1:9092\n"
    "  odradek topics alter flights --config retention.ms=3600000 -b 127.0.0.1:9092\n"
    "  odradek topics alter flights --delete-config retention.ms -b 127.0.0.1:9092",
)
def alter(
    name: Name,
    *,
    bootstrap: Bootstrap,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=LAST_INT32,
            metavar="N",
            help="The new number of partitions. Keys can then go to other partitions.",
        ),
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Remove a topic's own value of a setting. Repeatable."),
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Change a topic's settings, or add partitions to it."""
    from odradek.core.errors import KafkaError

    changes: dict[str, str | None] = {**_settings(config)}
    for setting in delete_config or ():
        if setting in changes:
            raise CommandError(f"--config and --delete-config both contain {setting}: leave one out")
        changes[setting] = None
    if partitions is None and not changes:
        raise CommandError("topics alter: nothing to change: give --partitions, --config or --delete-config")
    given_names([name], "TOPIC")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        _check_names(admin, name, delete_config or [])
        try:
            if changes and partitions is not None:  # neither is changed if one would be refused
                admin.create_partitions({name: partitions}, validate_only=True)
            if changes:
                admin.alter_topic_configs(name, changes)
        except KafkaError as error:
            raise _with_hint(admin, error, changes) from None
        if partitions is not None:
            admin.create_partitions({name: partitions})
    if as_json:
        print_json({"topic": name, "partitions": partitions, "configs": changes})
    else:
        note(f"Altered {name}.")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek topics delete old-flights -b 127.0.0.1:9092\n"
    "  odradek topics delete a b --yes -b 127.0.0.1:9092",
)
def delete(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    options: TopicOption = None,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Delete topics with all their records, and the offsets of groups in these topics."""
    chosen = _topics(names, options)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        admin.describe_topics(chosen)  # reports an unknown topic before the question
        if not confirm(f"Delete {', '.join(chosen)} with all records?", yes):
            return
        with progress("Deleting", len(chosen), "topics") as advance:
            for name in chosen:
                admin.delete_topics([name])
                advance(1)
    if as_json:
        print_json({"deleted": chosen})
    else:
        note(f"Deleted {', '.join(chosen)}.")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek topics elect flights -b 127.0.0.1:9092\n"
    "  odradek topics elect --all -b 127.0.0.1:9092\n"
    "  odradek topics elect flights:0,1 --unclean -b 127.0.0.1:9092",
)
def elect(
    names: PartitionNames = None,
    *,
    bootstrap: Bootstrap,
    options: PartitionOption = None,
    all_partitions: Annotated[bool, typer.Option("--all", help="All partitions of all topics.")] = False,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Any replica leads a partition without a leader. Records may be lost."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Elect unclean leaders without asking.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Elect the preferred leaders of partitions, the first replica of each, or unclean ones."""
    if all_partitions and (names or options):
        raise CommandError("topics elect: --all is for all topics: leave the names out")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = None if all_partitions else _named_partitions(admin, _topics(names, options))
        what = "all partitions without a leader" if chosen is None else ", ".join(map(str, chosen))
        question = f"Elect unclean leaders of {what}? Records that their replicas do not have are lost."
        if unclean and not confirm(question, yes):
            return
        results = admin.elect_leaders("unclean" if unclean else "preferred", chosen)
        described = admin.describe_topics(sorted({tp.topic for tp in results}), missing_ok=True) if results else {}
    by_partition = {(t.name, p.partition): p for t in described.values() for p in t.partitions}
    rows = election_rows(results, by_partition)
    if as_json:
        print_json(rows, indent=2)
    elif rows:
        lines = [tuple(map(_cell, row.values())) for row in rows]
        note_table(table_or_blocks(("TOPIC", "PARTITION", "LEADER", "RESULT"), lines, right=frozenset({1, 2})))
    else:
        note("No partition needs an election.")
    failures = failure_lines(results, by_partition)
    for line in failures:
        error_line(line)
    if failures:
        raise typer.Exit(EXIT_FAILED)


def _named_partitions(admin: Admin, arguments: list[str]) -> list[TopicPartition]:
    """Returns the partitions of ``topic`` and ``topic:0,1``, sorted. Raises CommandError, UnknownTopic."""
    from odradek.core.ids import TopicPartition

    topics, single = parse_partitions(arguments, "")
    chosen = {TopicPartition(*one) for one in single}
    held = {name: admin.partitions(name) for name in sorted({*topics, *(name for name, _ in single)})}
    if unknown := next((tp for tp in sorted(chosen) if tp not in held[tp.topic]), None):
        raise CommandError(
            f"topic {unknown.topic} has no partition {unknown.partition} (it has {len(held[unknown.topic])})"
        )
    for name in topics:
        chosen.update(held[name])
    return sorted(chosen)


@app.command(
    name="delete-records",
    epilog="Examples:\n\n\b\n"
    "  odradek topics delete-records flights --before 1000 -b 127.0.0.1:9092\n"
    "  odradek topics delete-records flights:0,1 --before end --yes -b 127.0.0.1:9092",
)
def delete_records(
    names: PartitionNames = None,
    *,
    bootstrap: Bootstrap,
    options: PartitionOption = None,
    before: Annotated[str, typer.Option("--before", metavar="OFFSET|end", help="The first offset to keep.")],
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Delete the oldest records of partitions: each log then starts at the given offset, or at its old end."""
    if before != "end" and not (before.isascii() and before.isdigit()):
        raise CommandError(f"--before {before!r}: expected an offset or end")
    offset = -1 if before == "end" else int(before)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = _named_partitions(admin, _topics(names, options))
        _check_range(admin, chosen, offset)
        what = ", ".join(map(str, chosen))
        if not confirm(f"Delete the records of {what} before {'the end' if offset < 0 else offset}?", yes):
            return
        starts = admin.delete_records(dict.fromkeys(chosen, offset))
    if as_json:
        print_json([{"topic": t, "partition": p, "log_start": at} for (t, p), at in sorted(starts.items())])
        return
    rows = [(tp.topic, str(tp.partition), str(at)) for tp, at in sorted(starts.items())]
    note_table(table_or_blocks(("TOPIC", "PARTITION", "LOG-START"), rows, right=frozenset({1, 2})))


def _check_range(admin: Admin, partitions: Iterable[TopicPartition], offset: int) -> None:
    """Raises the error that the deletion of the records before ``offset`` would get. -1: up to the end."""
    from odradek.core.ids import LATEST

    for tp, end in admin.list_offsets(dict.fromkeys(sorted(partitions), LATEST)).items():
        if offset > end.offset:
            raise CommandError(
                f"--before {offset}: the log of {tp} ends at {end.offset}: give an offset up to {end.offset}"
            )
