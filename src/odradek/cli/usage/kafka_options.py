"""Options and commands of Kafka's tools, kcat and others that have another form here: the error says which form."""

from __future__ import annotations

from collections.abc import Collection

# kafka-consumer-groups, kafka-topics, kafka-console-consumer, kafka-console-producer, kafka-get-offsets (Kafka 4.3).
_FORMS = {
    "--reset-offsets": "odradek groups reset",
    "--offsets": "odradek groups describe shows the offsets",
    "--members": "odradek groups members",
    "--state": "odradek groups state",
    "--bootstrap-servers": "-b HOST:PORT",
    "--broker-list": "-b HOST:PORT",
    "--consumer.config": "--command-config FILE",
    "--producer.config": "--command-config FILE",
    "--consumer-config": "--command-config FILE",
    "--consumer-property": "--command-config FILE has settings",
    "--producer-property": "--command-config FILE has settings",
    "--command-property": "--command-config FILE has settings",
    "--admin.config": "--command-config FILE",
    "--config-file": "--command-config FILE",
    "--compression-codec": "--command-config FILE with compression.type=gzip",
    "--compression": "--command-config FILE with compression.type=gzip",
    "--acks": "--command-config FILE with acks=1",
    "--request-required-acks": "--command-config FILE with acks=1",
    "--request-timeout-ms": "--command-config FILE with request.timeout.ms",
    "--sync": "each record is acknowledged before the command ends: leave it out",
    "--message-send-max-retries": "--command-config FILE with retries",
    "--linger-ms": "--command-config FILE with linger.ms",
    "--max-memory-bytes": "--command-config FILE with buffer.memory",
    "--print-key": "--json prints keys, times and headers",
    "--print-offset": "--json prints partitions and offsets",
    "--print-headers": "--json prints keys, times and headers",
    "--key-deserializer": "--json prints keys and values; bytes that are no text are base64",
    "--value-deserializer": "--json prints keys and values; bytes that are no text are base64",
    "--key-serializer": "--format json|csv|parquet has keys and headers",
    "--value-serializer": "--format json|csv|parquet has keys and headers",
    "--zookeeper": "-b HOST:PORT: only odradek zookeeper asks ZooKeeper",
    "--producer-config": "--command-config FILE",
    "--property": "--json prints keys, times and headers; --command-config FILE has settings",
    "--formatter": "--json prints keys, times and headers",
    "--formatter-property": "--json prints keys, times and headers",
    "--reader-property": "--format json|csv|parquet has keys and headers",
    "--line-reader": "--format json|csv|parquet has keys and headers",
    "--timeout-ms": "without --follow, the command ends at the present end of the log",
    "--skip-message-on-error": "--isolation and --from choose the records",
    "--enable-systest-events": "--json",
    "--include": "one topic at a time: TOPIC",
    "--whitelist": "one topic at a time: TOPIC",
    "--partition": "TOPIC:0,1 names partitions",
    "--time": "--from TIME, or odradek groups describe --time",
    "--exclude-internal": "internal topics are not listed",
}


_FORMS_OF_COMMANDS = {
    ("odradek topics list", "--topic"): "odradek topics describe TOPIC",
    **{
        (f"odradek {command}", option): "--listen HOST:PORT"
        for command in ("serve", "monitor")
        for option in ("--port", "--host", "--bind")
    },
    ("odradek serve", "--bootstrap-server"): "--listen HOST:PORT",
    **{("odradek serve", option): "--config NAME=VALUE" for option in ("--override", "--property", "-D")},
    ("odradek serve", "--log-dir"): "--data-dir DIR",
    ("odradek serve", "--dir"): "--data-dir DIR",
    **{
        ("odradek produce", option): '--format json, one {"key": …, "value": …} a line'
        for option in ("--property", "-K", "--key-separator", "--parse-key")
    },
    ("odradek produce", "--partition"): '--format json, one {"partition": N, "value": …} a line',
    ("odradek produce", "--headers"): '--format json, one {"headers": …, "value": …} a line',
    ("odradek transactions abort", "--transactional-id"): "odradek transactions force-terminate --transactional-id ID",
    ("odradek zookeeper groups", "--group"): "odradek zookeeper describe GROUP",
    **{
        ("odradek zookeeper groups", option): "odradek zookeeper describe GROUP --topic TOPIC"
        for option in ("--topic", "--topics")
    },
    ("odradek zookeeper groups", "-b"): "-z HOST:PORT alone: it lists what ZooKeeper has",
    ("odradek zookeeper groups", "--bootstrap-server"): "-z HOST:PORT alone: it lists what ZooKeeper has",
    ("odradek zookeeper export", "-b"): "-z HOST:PORT alone: it writes what ZooKeeper has",
    ("odradek zookeeper export", "--bootstrap-server"): "-z HOST:PORT alone: it writes what ZooKeeper has",
    ("odradek zookeeper delete", "-b"): "-z HOST:PORT alone: it deletes from ZooKeeper",
    ("odradek zookeeper delete", "--bootstrap-server"): "-z HOST:PORT alone: it deletes from ZooKeeper",
    ("odradek groups reset", "--to-date"): "--to-datetime TIME",
    ("odradek groups reset", "--to-time"): "--to-datetime TIME",
    **{
        ("odradek groups reset", option): "--to-datetime TIME"
        for option in ("--to-timestamp", "--timestamp", "--datetime", "--time")
    },
    ("odradek groups reset", "--undo"): "the line Undo of a reset, with --from-file FILE; --undo-file names a new file",
    **{
        ("odradek groups reset", option): "--export prints the plan: --export > FILE"
        for option in ("--output", "-o", "--export-file", "--to-file")
    },
    ("odradek groups reset", "--file"): "--from-file CSV",
    ("odradek offsets dump", "--partition"): "--group GROUP; odradek groups locate GROUP names its partition",
    ("odradek offsets dump", "--topic"): "--group GROUP; the lines have [group,topic,partition]",
    **{
        ("odradek transactions list", option): "the column TransactionState; --json for a filter such as jq"
        for option in ("--state", "--filter-states")
    },
    **{("odradek cluster format", option): "--cluster-id ID" for option in ("-t", "--uuid", "--cluster")},
    **{("odradek cluster format", option): "--config FILE" for option in ("-c", "--config-file", "--server-config")},
    **{("odradek cluster format", option): "--data-dir DIR" for option in ("-d", "--dir", "--log-dir", "--log-dirs")},
    **{
        ("odradek cluster format", option): "the setting controller.quorum.voters: leave it out"
        for option in ("-s", "-I", "-N", "--standalone", "--initial-controllers", "--no-initial-controllers")
    },
    ("odradek cluster format", "-g"): "--ignore-formatted",
    **{
        ("odradek cluster format", option): "--add-scram FILE of odradek serve, at the first start"
        for option in ("-S", "--add-scram")
    },
    ("odradek pipeline ingest", "--once"): "--available-now, which is the default",
    **{
        ("odradek pipeline ingest", option): "--on-bad keep: the table's columns raw and error have unreadable values"
        for option in ("--dead-letter-topic", "--dead-letter", "--dead-letters", "--dlq", "--bad-records")
    },
    ("odradek groups reset", "--since"): "--by-duration SPAN, or --to-datetime TIME",
    ("odradek groups describe", "--lag"): "the column LAG is always there; --sort lag",
    **{("odradek consume", option): "--max-records N" for option in ("-c", "-n", "--count", "--limit", "--num")},
    **{("odradek consume", option): "--from OFFSET|TIME|-N" for option in ("-o", "--since", "--start")},
    ("odradek consume", "--last"): "--tail N",
    ("odradek consume", "--end"): "--to OFFSET|TIME|-N",
    ("odradek offsets dump", "--from-beginning"): "the dump begins there already: leave it out",
    **{
        (
            "odradek offsets dump",
            option,
        ): "odradek pipeline history --since TIME|SPAN shows what has happened"
        for option in ("--since", "--from", "--tail")
    },
    ("odradek consume", "--headers"): "--json prints keys, times and headers",
    ("odradek consume", "-f"): "--format lines|json|csv|parquet",
    ("odradek consume", "-C"): "odradek consume TOPIC",
    **{
        ("odradek produce", option): "lines of standard input or --file: echo VALUE | odradek produce TOPIC"
        for option in ("--value", "--message", "-v", "-m", "-P")
    },
    ("odradek topics delete-records", "--offset-json-file"): "TOPIC:0,1 --before OFFSET",
    ("odradek topics delete-records", "--offset"): "--before OFFSET",
    ("odradek topics elect", "--all-topic-partitions"): "--all",
    ("odradek topics elect", "--election-type"): "preferred leaders are the default; --unclean",
    ("odradek topics elect", "--path-to-json-file"): "TOPIC:0,1 names partitions",
    (
        "odradek topics describe",
        "--topics-with-overrides",
    ): "odradek topics describe TOPIC shows a topic's own settings",
    ("odradek topics describe", "--exclude-internal"): "odradek topics list --exclude-internal",
    ("odradek topics create", "--replicas"): "--replication-factor N",
    ("odradek topics create", "-p"): "--partitions N",
    ("odradek groups reset", "--to-beginning"): "--to-earliest",
    ("odradek groups reset", "--to-end"): "--to-latest",
    ("odradek groups reset", "--back"): "--shift-by -N",
    ("odradek pipeline verify", "--output"): "the table is an argument: odradek pipeline verify TABLE",
    ("odradek groups reset", "--from-group"): "reset GROUP --to-current --export prints a plan for --from-file",
    (
        "odradek groups reset",
        "--to-group",
    ): "--to-current --export prints a plan, and reset OTHER --from-file takes it",
    **{
        (f"odradek zookeeper {command}", "--all-groups"): "each group by its name: --group GROUP (repeatable)"
        for command in ("delete", "reset", "owners")
    },
}
"""Forms of an option that other commands or other servers have: the path of the command without it, and the option."""
_EXPORT = "odradek groups reset --all-groups --all-topics --to-current --export"
_NO_ACLS = "kafka-acls.sh of Apache Kafka, which works with this broker: odradek has no command for ACLs"
_NO_DUMP = "kafka-dump-log.sh of Apache Kafka; odradek log check reads all batches"
_USERS = "--add-scram FILE of odradek serve at the first start, or kafka-configs.sh of Apache Kafka"
_START = "odradek serve --brokers 3 --data-dir DIR --listen HOST:PORT"
_NO_CONFIGS = "odradek topics alter TOPIC --config NAME=VALUE; kafka-configs.sh for brokers, users and groups"
_COMMANDS = {
    **{("odradek", word): "odradek groups" for word in ("consumer-groups", "kafka-consumer-groups", "consumers")},
    **{("odradek", word): "odradek topics" for word in ("kafka-topics",)},
    **{("odradek", word): "odradek consume TOPIC" for word in ("console-consumer", "consumer", "read", "cat", "tail")},
    **{("odradek", word): "odradek produce TOPIC" for word in ("console-producer", "producer", "send", "write")},
    **{("odradek", word): "odradek transactions" for word in ("kafka-transactions", "tx")},
    **{
        ("odradek", word): "odradek serve --data-dir DIR --listen HOST:PORT"
        for word in ("start", "broker", "server", "run")
    },
    **{("odradek", word): "odradek cluster describe" for word in ("brokers", "nodes", "metadata-quorum")},
    **{("odradek", word): "odradek pipeline history" for word in ("history", "report")},
    **{("odradek", word): f"odradek pipeline {word}" for word in ("ingest", "replay", "transform", "verify", "adopt")},
    **{("odradek", word): _NO_ACLS for word in ("acls", "acl")},
    **{("odradek", word): _NO_CONFIGS for word in ("configs", "config")},
    ("odradek", "get-offsets"): "odradek topics describe TOPIC, which shows the start and end of each log",
    **{("odradek", word): _NO_DUMP for word in ("dump-log", "dump", "kafka-dump-log")},
    **{("odradek log", word): _NO_DUMP for word in ("dump", "show", "read", "print")},
    **{("odradek", word): _USERS for word in ("users", "user", "scram", "security", "credentials")},
    **{("odradek cluster", word): _START for word in ("start", "create", "run", "serve", "up", "restart")},
    **{
        ("odradek cluster", word): "Ctrl-C, or SIGTERM to the process of odradek serve"
        for word in ("stop", "down", "shutdown", "kill")
    },
    **{
        ("odradek cluster", word): "odradek cluster describe"
        for word in ("status", "list", "nodes", "info", "show", "cluster-id")
    },
    ("odradek cluster", "random-uuid"): "odradek cluster format without --cluster-id, which prints a new id",
    **{("odradek offsets", word): f"{_EXPORT} prints the offsets as CSV" for word in ("export", "backup")},
    **{("odradek offsets", word): "odradek groups reset --from-file FILE" for word in ("import", "restore")},
    **{("odradek offsets", word): "odradek groups describe GROUP" for word in ("describe", "show", "list", "lag")},
    ("odradek offsets", "delete"): "odradek groups delete-offsets GROUP --topic TOPIC",
    **{("odradek zookeeper", word): "odradek zookeeper groups" for word in ("list", "ls")},
    **{("odradek zookeeper", word): "odradek zookeeper describe GROUP" for word in ("show", "lag", "offsets")},
    ("odradek zookeeper", "copy"): "odradek zookeeper migrate --to kafka GROUP",
    **{
        ("odradek pipeline", word): "odradek pipeline ingest, transform or replay: the options say what one does"
        for word in ("run", "start", "create")
    },
    ("odradek", "storage"): "odradek cluster format",
    **{("odradek", word): "odradek zookeeper" for word in ("zk", "zoo")},
    **{("odradek", word): "odradek transactions" for word in ("txn", "txns")},
    **{("odradek", word): "odradek topics elect" for word in ("leader-election", "kafka-leader-election", "elect")},
    **{("odradek", word): "odradek monitor" for word in ("ui", "watch", "burrow", "exporter", "lag-exporter")},
    ("odradek", "delete-records"): "odradek topics delete-records TOPIC --before OFFSET",
    ("odradek", "rewind"): "odradek groups reset GROUP --topic TOPIC --by-duration 2h",
    ("odradek groups", "reset-offsets"): "odradek groups reset GROUP",
    ("odradek groups", "rewind"): "odradek groups reset GROUP --topic TOPIC --by-duration 2h",
    ("odradek groups", "offsets"): "odradek groups describe GROUP",
    ("odradek groups", "show"): "odradek groups describe GROUP",
    ("odradek groups", "export"): f"{_EXPORT} prints the offsets as CSV",
    ("odradek groups", "backup"): f"{_EXPORT} prints the offsets as CSV",
    ("odradek groups", "import"): "odradek groups reset --from-file FILE",
    ("odradek groups", "restore"): "odradek groups reset --from-file FILE",
    ("odradek groups", "undo"): "the undo line of the reset, with odradek groups reset --from-file FILE",
    ("odradek groups", "copy"): "odradek groups reset GROUP --all-topics --to-current --export prints a plan; "
    "odradek groups reset OTHER --from-file takes it",
    ("odradek groups", "history"): "odradek pipeline history --group GROUP",
    ("odradek topics", "show"): "odradek topics describe TOPIC",
    ("odradek topics", "offsets"): "odradek topics describe TOPIC, which shows the start and end of each log",
    ("odradek transactions", "terminate"): "odradek transactions force-terminate --transactional-id ID",
    ("odradek pipeline", "rewind"): "odradek groups reset GROUP --topic TOPIC --by-duration 2h",
    ("odradek", "lag"): "odradek groups describe GROUP",
    ("odradek groups", "lag"): "odradek groups describe GROUP",
    ("odradek offsets", "reset"): "odradek groups reset GROUP",
    ("odradek", "reset"): "odradek groups reset GROUP",
    ("odradek topics", "ls"): "odradek topics list",
    ("odradek groups", "ls"): "odradek groups list",
    ("odradek topics", "config"): "odradek topics alter TOPIC --config NAME=VALUE",
    ("odradek", "version"): "odradek --version",
    ("odradek", "help"): "odradek --help",
}
"""Commands of other tools: the words before, the word, and the command here."""
_OF_GROUPS = frozenset({"--members", "--offsets", "--reset-offsets", "--state"})


def other_form(option: str, commands: Collection[str], command: str = "odradek groups") -> str:
    """Returns ``: use …`` for an option of Kafka's tools that has another form here; otherwise an empty text.

    ``command``: the words before the option: some options belong to one tool of Kafka alone. ``commands``: the commands
    of the group, for example ``describe``: Kafka's tools have ``--describe``."""
    name = option.partition("=")[0]
    if command.startswith("odradek ") and name == f"--{command.rsplit(maxsplit=1)[-1]}":
        return f": the command is {command} already: omit {name}"
    if form := _FORMS_OF_COMMANDS.get((command, name)):
        return f": here, {form}"
    if name.removeprefix("--") in commands:
        return f": it is a command here: {command} {name.removeprefix('--')}"
    if name in _OF_GROUPS and not command.startswith("odradek groups"):
        return ""
    return f": here, {_FORMS[name]}" if name in _FORMS else ""


def other_command(path: str, word: str) -> str:
    """Returns the command that does here what ``word`` does in other tools; empty if there is none."""
    return _COMMANDS.get((path, word), "")
