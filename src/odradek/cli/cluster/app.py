"""``odradek cluster``: the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.options import (
    CONTEXT,
    LAST_INT32,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    confirm,
    connect,
    table_or_blocks,
)
from odradek.cli.terminal import CommandError, note, note_table, print_json
from odradek.core.counts import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from odradek.client.admin import Admin
    from odradek.client.model import NodeDescription

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The nodes of a cluster: describe or unregister them, format or convert a directory.",
    epilog="Examples:\n\n\b\n"
    "  odradek cluster describe -b 127.0.0.1:9092\n"
    "  odradek cluster format --data-dir ./node-1 --node-id 1\n"
    "  odradek cluster convert --data-dir ./cluster/1",
)


@app.callback()
def _cluster() -> None:
    """The nodes of a cluster: describe or unregister them, format or convert a directory."""


@app.command(
    "format",
    epilog="Examples:\n\n\b\n"
    "  odradek cluster format --data-dir ./controller --node-id 100\n"
    "  odradek cluster format --data-dir ./node-1 --node-id 1 --cluster-id J8aAPcfLQt2bqs1JT_rMgQ\n"
    "  odradek cluster format --config server.properties --cluster-id J8aAPcfLQt2bqs1JT_rMgQ",
)
def format_directory(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Folder of the node; created if missing. Default: log.dirs."),
    ] = None,
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", min=0, max=LAST_INT32, metavar="N", help="Id of the node. Default: node.id."),
    ] = None,
    cluster_id: Annotated[
        str | None,
        typer.Option("--cluster-id", metavar="ID", help="Id of the cluster. Default: a new one, which is printed."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The node's properties file, which is checked, too."),
    ] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="Leave a directory as it is if it belongs to this node.")
    ] = False,
) -> None:
    """Prepare a directory for a node of a cluster, as kafka-storage format does.

    All nodes of a cluster have the same cluster id: format the first directory without one, and give the printed id to
    the others.
    """
    from odradek.cli.broker.cluster_format import run_format

    run_format(data_dir, node_id, cluster_id, config, ignore_formatted=ignore_formatted)


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek cluster convert --data-dir ./cluster/1        the controller gets ./cluster/controller\n"
    "  odradek cluster convert --data-dir ./node-1 --controller-dir ./node-100 --controller-id 100"
)
def convert(
    *,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Folder of the lone broker, which is stopped.")
    ],
    controller_dir: Annotated[
        Path | None,
        typer.Option(
            "--controller-dir", metavar="DIR", help="New folder of the controller. Default: `controller` beside DIR."
        ),
    ] = None,
    controller_id: Annotated[
        int, typer.Option("--controller-id", min=0, max=LAST_INT32, metavar="N", help="Node id of the controller.")
    ] = 100,
) -> None:
    """Turn the directory of a lone broker into that of a broker of a cluster. Its topics and records go on.

    Topics, settings, users and quotas move into the folder of a new controller. If the command is interrupted, the
    directory is still that of the lone broker, or the next call or start finishes the conversion.
    """
    from odradek.cli.broker.cluster_format import run_convert

    run_convert(data_dir, controller_dir or data_dir.absolute().parent / "controller", controller_id)


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek cluster describe -b 127.0.0.1:9092\n"
    "  odradek cluster describe -b 127.0.0.1:9092 --json"
)
def describe(
    *,
    bootstrap: Bootstrap,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the nodes of a cluster: roles, racks, fenced brokers, leaders, and each node's lag behind the metadata log.

    A fenced broker leads no partition: its controller has not heard of it for broker.session.timeout.ms. Works with
    Apache Kafka, too.
    """
    with connect(bootstrap, timeout_ms, command_config) as admin:
        found = admin.describe_nodes()
    if as_json:
        print_json(
            {
                "cluster_id": found.cluster_id,
                "epoch": found.epoch,
                "high_watermark": found.high_watermark,
                "partitions_without_leader": found.leaderless,
                "nodes": [
                    {
                        "node_id": node.node_id,
                        "roles": list(node.roles),
                        "host": node.host,
                        "port": node.port,
                        "rack": node.rack,
                        "fenced": node.is_fenced,
                        "active_controller": node.is_active,
                        "leaders": node.leaders,
                        "end_offset": node.end_offset,
                        "lag": node.lag,
                    }
                    for node in found.nodes
                ],
            },
            indent=2,
        )
        return
    rows = [
        (
            str(node.node_id),
            ",".join(node.roles),
            f"{node.host}:{node.port}" if node.port >= 0 else "-",
            node.rack or "-",
            "fenced" if node.is_fenced else "active" if node.is_active else "up",
            str(node.leaders) if "broker" in node.roles else "-",
            "-" if node.lag is None else str(node.lag),
        )
        for node in found.nodes
    ]
    note_table(
        table_or_blocks(
            ("NODE", "ROLES", "ADDRESS", "RACK", "STATE", "LEADERS", "METADATA-LAG"), rows, right=frozenset({0, 5, 6})
        )
    )
    without = f", {counted(found.leaderless, 'partition')} without a leader" if found.leaderless else ""
    note(f"Cluster {found.cluster_id}, controller epoch {found.epoch}{without}.")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek cluster unregister 3 -b 127.0.0.1:9092        say what it means, then ask\n"
    "  odradek cluster unregister 3 -b 127.0.0.1:9092 --yes"
)
def unregister(
    broker_id: Annotated[int, typer.Argument(metavar="N", min=0, max=LAST_INT32, help="Node id of a stopped broker.")],
    *,
    bootstrap: Bootstrap,
    command_config: CommandConfig = None,
    yes: Annotated[bool, typer.Option("--yes", help="Unregister without asking.")] = False,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Remove a stopped broker from its cluster, as kafka-cluster unregister does.

    Its directory stays, and so do its replicas in the assignments of partitions: a start of the broker with this
    directory joins it to the cluster again. Works with Apache Kafka, too.
    """
    with connect(bootstrap, timeout_ms, command_config) as admin:
        nodes = admin.describe_nodes().nodes
        _check_stopped(broker_id, nodes)
        total, only = _replicas_on(admin, broker_id)
        if not confirm(_question(broker_id, total, only), yes):
            return
        admin.unregister_broker(broker_id)
    if as_json:
        print_json({"unregistered": broker_id, "partitions": total, "without_other_replica": only})
    else:
        note(f"Unregistered broker {broker_id}.")


def _check_stopped(broker_id: int, nodes: Sequence[NodeDescription]) -> None:
    """Raises CommandError for a node that is no broker, and for a broker that runs."""
    brokers = {node.node_id: node for node in nodes if "broker" in node.roles}
    if (node := brokers.get(broker_id)) is None:
        others = ", ".join(map(str, sorted(brokers)))
        raise CommandError(f"no broker {broker_id} is registered: the brokers are {others}")
    if not node.is_fenced:
        raise CommandError(
            f"broker {broker_id} is running: stop it first. After a kill -9, wait for broker.session.timeout.ms"
        )


def _replicas_on(admin: Admin, broker_id: int) -> tuple[int, int]:
    """Returns the numbers of partitions with a replica on a broker, and of those with no other one."""
    topics = admin.describe_topics().values()
    replicas = [one.replicas for topic in topics for one in topic.partitions if broker_id in one.replicas]
    return len(replicas), sum(len(one) == 1 for one in replicas)


def _question(broker_id: int, total: int, only: int) -> str:
    what = f"{counted(total, 'partition')} {'has' if total == 1 else 'have'} a replica there" if total else ""
    lost = f", {only} of them no other: their records are out of reach until it joins again" if only else ""
    return f"Unregister broker {broker_id}?" + (f" {what}{lost}." if what else "")
