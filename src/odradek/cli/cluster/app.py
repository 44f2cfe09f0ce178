"""``odradek cluster``: the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import (
    CONTEXT,
    LAST_INT32,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    table_or_blocks,
)
from odradek.cli.terminal import note, note_table, print_json
from odradek.core.counts import counted

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The nodes of a cluster: describe them, format or convert a directory.",
    epilog="Examples:\n\n\b\n"
    "  odradek cluster describe -b 127.0.0.1:9092\n"
    "  odradek cluster format --data-dir ./node-1 --node-id 1\n"
    "  odradek cluster convert --data-dir ./cluster/1",
)


@app.callback()
def _cluster() -> None:
    """The nodes of a cluster: describe them, format or convert a directory."""


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
