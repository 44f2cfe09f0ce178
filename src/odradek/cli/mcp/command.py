"""The command line of ``odradek mcp``."""

from __future__ import annotations

import typer

from odradek.cli.mcp.options import McpLine
from odradek.cli.monitor.options import ReaderLine
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek mcp -b 127.0.0.1:9092\n"
    "  odradek mcp --url http://127.0.0.1:8000 --token-file token\n"
    "  odradek mcp -b 127.0.0.1:9092 --checkpoints /data/checkpoints --allow reset\n"
    "  odradek mcp -b 127.0.0.1:9092 --listen 127.0.0.1:8765"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="mcp", epilog=EPILOG, context_settings=CONTEXT)
@of_fields(ReaderLine)
def mcp(line: McpLine) -> None:
    """Answer an agent's questions about the groups of a cluster, by the Model Context Protocol.

    An agent starts this command and talks to it over stdin and stdout, or asks it over HTTP (--listen). It follows a
    cluster (-b), or reads a running `odradek monitor` (--url). It changes nothing in Kafka: with -b an agent can plan a
    reset, which a person applies with `odradek groups apply PLAN`. With --allow reset the agent can apply it itself.
    """
    from odradek.cli.mcp.serve import run_mcp

    run_mcp(line)
