"""``odradek offsets``: the offsets topic of a Kafka cluster."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.options import CONTEXT, TIMEOUT_MS, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.suggestions import group_names, some_groups
from odradek.cli.terminal import CommandError, error_line, writing_out
from odradek.text.printable import printable, printable_json
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.codecs.offsets_topic import CoordinatorRecord, GroupRecord

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The offsets topic of a Kafka cluster, decoded.",
    epilog="Example:\n\n\b\n  odradek offsets dump --group flight-lake -b 127.0.0.1:9092",
)


@app.callback()
def _offsets() -> None:
    """The offsets topic of a Kafka cluster, decoded."""


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek offsets dump -b 127.0.0.1:9092\n"
    "  odradek offsets dump --group flight-lake --type commits --max 10 --json -b 127.0.0.1:9092",
)
def dump(
    *,
    bootstrap: Bootstrap,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Print only this group's records.")] = None,
    kind: Annotated[
        str, typer.Option("--type", metavar="all|commits|groups", help="Print only commits, or only the other records.")
    ] = "all",
    max_lines: Annotated[
        int | None, typer.Option("--max", min=1, metavar="N", help="Stop after this many lines.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines in the form of Kafka 4's formatters.")
    ] = False,
    command_config: CommandConfig = None,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Print every record that __consumer_offsets still has, in each partition the oldest first.

    One line for each record: [group,topic,partition]::OffsetAndMetadata(...) for a commit, [group]::GroupMetadata(...)
    for a generation of a classic group, similar lines for the records of newer protocols; ::NULL for a tombstone.
    """
    from odradek.client.admin import offsets_topic

    if kind not in _KINDS:
        raise CommandError(f"--type {kind!r}: one of {', '.join(_KINDS)}")
    form = _printable_json_line if as_json else _printable_line
    with connect(bootstrap, timeout_ms, command_config) as admin:
        if not offsets_topic.partitions(admin):
            error_line("this cluster has no __consumer_offsets topic yet: no client has looked up a group coordinator")
            return
        has_entries = False
        printed = 0
        for entry in offsets_topic.entries(admin, group):
            has_entries = True
            if kind in ("all", _kind(entry.key)):
                with writing_out():
                    print(form(entry.key, entry.value))
                printed += 1
                if printed == max_lines:
                    break
        if not printed:
            _explain(admin, group, kind, has_entries=has_entries)


def _explain(admin: Admin, group: str | None, kind: str, *, has_entries: bool) -> None:
    """Says on stderr why nothing was printed. Raises CommandError for a group without any record."""
    if group is not None and not has_entries:
        meant = nearest(group, names := group_names(admin))
        raise CommandError(f"__consumer_offsets has no record of group {group!r}{meant or some_groups(names)}")
    whose = "" if group is None else f" of group {group}"
    what = {"commits": "of commits", "groups": "of another kind than commits"}.get(kind, "")
    error_line(f"__consumer_offsets has no record{whose} {what}".rstrip())


_KINDS = ("all", "commits", "groups")


def _number(key: bytes | None) -> int:
    return int.from_bytes(key[:2], "big", signed=True) if key is not None and len(key) >= 2 else -1


def _kind(key: bytes | None) -> str:
    from odradek.codecs.offsets_topic import OFFSET_COMMIT_TYPES

    return "commits" if _number(key) in OFFSET_COMMIT_TYPES else "groups"


def _json(key: bytes | None, value: bytes | None) -> str:
    from odradek.codecs.offsets_topic import UnknownRecord, decode, format_json

    if (line := format_json(key, value, (_number(key),))) is not None:
        return line
    record = decode(key, value)
    reason = record.reason if isinstance(record, UnknownRecord) else "it cannot be read"
    raw = {"key": {"type": _number(key), "bytes": _base64(key)}, "value": {"bytes": _base64(value)}}
    return json.dumps(raw | {"unreadable": reason}, separators=(",", ":"))


def _printable_line(key: bytes | None, value: bytes | None) -> str:
    return printable(_line(key, value))


def _printable_json_line(key: bytes | None, value: bytes | None) -> str:
    return printable_json(_json(key, value))


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _line(key: bytes | None, value: bytes | None) -> str:
    from odradek.codecs.offsets_topic import CoordinatorRecord, GroupRecord, UnknownRecord, decode, format_line

    record = decode(key, value)
    if isinstance(record, GroupRecord):
        return _group_line(record)
    if isinstance(record, CoordinatorRecord):
        return _coordinator_line(record, key, value)
    if isinstance(record, UnknownRecord):
        return f"[?]::Unreadable(type={record.key_type}, {record.reason})"
    return format_line(key, value) or "[?]::Unreadable"


def _group_line(record: GroupRecord) -> str:
    from odradek.codecs.consumer_protocol import decode_assignment

    head, content = f"[{record.key.group}]", record.value
    if content is None:
        return head + "::NULL"
    members = []
    for member in content.members:
        try:
            given = " ".join(map(str, decode_assignment(member.assignment))) or "-"
        except ValueError:
            given = f"{len(member.assignment)} bytes"  # another protocol than that of consumers
        members.append(f"{member.member_id} {member.client_host}: {given}")
    return (
        f"{head}::GroupMetadata(generation={content.generation}, protocolType={content.protocol_type}, "
        f"protocol={content.protocol}, leader={content.leader}, "
        f"currentStateTimestamp={content.current_state_timestamp_ms}, members=[{'; '.join(members)}])"
    )


def _coordinator_line(record: CoordinatorRecord, key: bytes | None, value: bytes | None) -> str:
    head = f"[{','.join(str(part) for part in record.key.values())}]"
    name = "".join(word.capitalize() for word in record.kind.name.split("_"))
    if record.value is None:
        return f"{head}::{name}::NULL"
    fields = json.loads(_json(key, value))["value"]["data"]
    shown = (f"{field}={json.dumps(content, separators=(',', ':'))}" for field, content in fields.items())
    return f"{head}::{name}({', '.join(shown)})"
