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
    **{("odradek consume", option): "--max-records N" for option in ("-c", "-n", "--count", "--limit", "--num")},
    **{("odradek consume", option): "--from OFFSET|TIME|-N" for option in ("-o", "--since", "--start")},
    ("odradek consume", "--last"): "--tail N",
    ("odradek consume", "-f"): "--format text|json|csv|parquet",
    ("odradek consume", "-C"): "odradek consume TOPIC",
    **{
        ("odradek produce", option): "lines of standard input or --file: echo VALUE | odradek produce TOPIC"
        for option in ("--value", "--message", "-v", "-m", "-P")
    },
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
_COMMANDS = {
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
        return f": it is a command here: {name.removeprefix('--')}"
    if name in _OF_GROUPS and not command.startswith("odradek groups"):
        return ""
    return f": here, {_FORMS[name]}" if name in _FORMS else ""


def other_command(path: str, word: str) -> str:
    """Returns the command that does here what ``word`` does in other tools; empty if there is none."""
    return _COMMANDS.get((path, word), "")
