"""The command line of ``odradek serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import CONTEXT

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    name="serve",
    context_settings=CONTEXT,
    epilog="Examples:\n\n\b\n"
    "  odradek serve --data-dir ./kafka-data --listen 127.0.0.1:9092\n"
    "  odradek serve --data-dir d --listen 127.0.0.1:0 --config num.partitions=4\n"
    "  odradek serve --data-dir d --listen 127.0.0.1:9092 --metrics 127.0.0.1:9404\n"
    "  odradek serve --data-dir d --listen [::1]:9092 --schema-registry [::1]:8081\n"
    "  odradek serve --brokers 3 --data-dir d --listen 127.0.0.1:9092 --racks a,b,c",
)
def serve(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the broker's logs; created if missing. Default: log.dirs."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address for clients; port 0 chooses a free port. Default: the setting listeners."
        ),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A broker setting by Kafka's name. Repeatable.")
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A properties file of broker settings, such as Kafka's server.properties."),
    ] = None,
    add_scram: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add the first users of SCRAM: lines of SCRAM-SHA-512=[name=NAME,password=PASSWORD].",
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config",
            metavar="NAME",
            help="Delete the value that clients have set for this setting of the broker, for example if"
            " max.connections.per.ip.overrides refuses all clients. Repeatable.",
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=99,
            metavar="N",
            help="Run a cluster: N brokers and a controller, each in its own process, on ports in a row. Brokers "
            "advertise the host of --listen; the controller is on 127.0.0.1, so no node of another machine can join.",
        ),
    ] = None,
    racks: Annotated[str, typer.Option(metavar="A,B,...", help="With --brokers: the rack of each broker.")] = "",
    restart: Annotated[
        bool, typer.Option("--restart", help="With --brokers: start a broker again that has died.")
    ] = False,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve the broker's metrics for Prometheus at http://HOST:PORT/metrics."
        ),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            "--schema-registry",
            metavar="HOST:PORT",
            help="Serve a schema registry with Confluent's API, too. Its schemas are in the topic _schemas.",
        ),
    ] = None,
    exit_with_parent: Annotated[
        bool,
        typer.Option("--exit-with-parent", hidden=True, help="Stop when the process that started it ends."),
    ] = False,
) -> None:
    """Run a broker. Prints `ready HOST:PORT` (all listeners) when it accepts requests. SIGTERM and Ctrl-C stop it.

    With --brokers, run a cluster; `ready` has the address of each broker, for clients.
    """
    from odradek.cli.broker.serve import FirstChanges, ServedCluster, ServedPages
    from odradek.cli.broker.serve import serve as run

    raise typer.Exit(
        run(
            data_dir,
            listen,
            config or [],
            config_file=config_file,
            first=FirstChanges(add_scram, delete_config or ()),
            exit_with_parent=exit_with_parent,
            cluster=ServedCluster(brokers, racks, restart),
            pages=ServedPages(metrics, schema_registry),
        )
    )
