"""``odradek groups``: consumer groups of any Kafka."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.client.admin import Admin

# kafka-consumer-groups waits this long by default, too.
TIMEOUT_MS = 5_000

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Consumer groups of any Kafka.",
    epilog="Example:\n\n\b\n  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)

Bootstrap = Annotated[
    str,
    typer.Option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT[,HOST:PORT]",
        help="Addresses of the cluster; some of them may be dead.",
    ),
]
Timeout = Annotated[int, typer.Option("--timeout", min=1, metavar="MS", help="How long to try, in milliseconds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def connect(bootstrap: str, timeout_ms: int) -> Admin:
    """An Admin for a command: it says at once when no address answers. Raises ConfigError."""
    from odradek.client.admin import Admin

    return Admin(
        bootstrap,
        client_id="odradek-cli",
        default_api_timeout_ms=timeout_ms,
        bootstrap_timeout_ms=0,
        socket_connection_setup_timeout_ms=max(1, timeout_ms * 4 // 5),
    )


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups describe --group flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups describe --group a --group b -b broker-1:9092,broker-2:9092 --json",
)
def describe(
    group: Annotated[list[str], typer.Option("--group", metavar="GROUP", help="The group. Repeatable.")],
    bootstrap: Bootstrap,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show what groups have committed and how far they are behind, as kafka-consumer-groups --describe does.

    CURRENT-OFFSET is the next record to read, LAG how many there are from it to the end of the log; "-" where
    there is none.
    """
    from odradek import lag

    if "" in group:
        raise CommandError("--group: a group's name cannot be empty")
    with connect(bootstrap, timeout_ms) as admin:
        found = [lag.describe(admin, name) for name in sorted(set(group))]
    if as_json:
        print(json.dumps([_as_json(one) for one in found], indent=2))
        return
    for one in found:
        said = lag.notice(one.group, one.state)
        if said is not None:
            print(f"\n{said}", file=sys.stderr, flush=True)
        if one.rows:
            print(f"\n{lag.format_table(one.rows)}", flush=True)


def _as_json(one: Any) -> dict[str, Any]:
    rows = [{name: value for name, value in row._asdict().items() if name != "group"} for row in one.rows]
    return {"group": one.group, "state": one.state, "partitions": rows}


@app.command(
    name="list",
    epilog="Examples:\n\n\b\n"
    "  odradek groups list -b 127.0.0.1:9092\n"
    "  odradek groups list --state Stable -b 127.0.0.1:9092 --json",
)
def list_(
    bootstrap: Bootstrap,
    state: Annotated[list[str] | None, typer.Option(help="Only groups in this state (Stable, Empty, …).")] = None,
    kind: Annotated[list[str] | None, typer.Option("--type", help="Only this type: classic, consumer.")] = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """List all groups of a cluster with their type and state."""
    from odradek import lag

    states = [_known(value, _STATES, "--state") for value in state or ()]
    kinds = [_known(value, _TYPES, "--type") for value in kind or ()]
    with connect(bootstrap, timeout_ms) as admin:
        groups = admin.list_groups(states=states, types=kinds)
    if as_json:
        rows = [
            {"group": g.group_id, "type": g.type, "state": g.state, "protocol_type": g.protocol_type} for g in groups
        ]
        print(json.dumps(rows, indent=2))
        return
    print(lag.format_groups(groups))


_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_TYPES = ("classic", "consumer", "share", "streams")


def _known(value: str, known: tuple[str, ...], option: str) -> str:
    for name in known:
        if name.lower() == value.lower():
            return name
    raise CommandError(f"{option} {value!r}: one of {', '.join(known)}")
