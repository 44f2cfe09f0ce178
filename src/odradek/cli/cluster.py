"""``odradek cluster``: the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import CONTEXT, LAST_INT32

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The nodes of a cluster: format a directory.",
    epilog="Example:\n\n\b\n  odradek cluster format --data-dir ./node-1 --node-id 1",
)


@app.callback()
def _cluster() -> None:
    """The nodes of a cluster: format a directory."""


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
        str, typer.Option("--cluster-id", metavar="ID", help="Id of the cluster. Default: a new one, which is printed.")
    ] = "",
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
    from odradek.cli.cluster_format import run_format

    run_format(data_dir, node_id, cluster_id, config, ignore_formatted=ignore_formatted)
