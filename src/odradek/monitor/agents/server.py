"""The server of the Model Context Protocol: tools over stdin and stdout, or over HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from odradek._version import __version__
from odradek.core.errors import OdradekError
from odradek.core.extras import extra_in_errors
from odradek.monitor.agents.tools import Tool, tool_named

with extra_in_errors(__name__):
    import anyio
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings

if TYPE_CHECKING:
    from starlette.applications import Starlette

_log = logging.getLogger("odradek.monitor")
INSTRUCTIONS = (
    "The consumer groups of a Kafka cluster: lag, states, findings about offsets that moved, expiry. Times are UTC. "
    "Begin with cluster_status. A reset of offsets is a plan first; a person applies it by its id."
)


def make_server(tools: Sequence[Tool]) -> Server[Any]:
    """Returns the server. A refused call is a result with ``is_error`` and one line of text."""
    listed = [_described(tool) for tool in tools]

    async def list_tools(_context: object, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_context: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = tool_named(tools, params.name)
            arguments = tool.arguments(params.arguments or {})
            reply = await anyio.to_thread.run_sync(partial(tool.call, **arguments))
        except (OdradekError, OSError) as error:
            return _refusal(str(error))
        except Exception:  # the agent cannot mend it; the person who runs the server reads the log
            _log.exception("the tool %s failed", params.name)
            return _refusal(f"{params.name} failed by a fault of odradek: the log of the server has the details")
        text = json.dumps(reply, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=reply)

    return Server(
        "odradek", version=__version__, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


def _described(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        title=tool.title, read_only_hint=not (tool.changes or tool.writes), destructive_hint=tool.changes,
        idempotent_hint=not (tool.changes or tool.writes), open_world_hint=False,
    )  # fmt: skip
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.description, input_schema=tool.schema(), annotations=hints
    )


def _refusal(text: str) -> types.CallToolResult:
    line = " ".join(text.split())
    return types.CallToolResult(content=[types.TextContent(type="text", text=line)], is_error=True)


def serve_stdio(tools: Sequence[Tool]) -> None:
    """Serves one client over stdin and stdout, until stdin ends."""

    async def serve() -> None:
        server = make_server(tools)
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options())

    anyio.run(serve)


def http_app(tools: Sequence[Tool]) -> Starlette:
    """Returns the ASGI application with the path ``/mcp``. It checks neither Host nor token: a guard has to."""
    return make_server(tools).streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
