"""A real MCP client that starts `telemetry mcp` and asks it; it records every message that the server sends unasked."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


class Asker:
    """One session with a server."""

    def __init__(self, session: ClientSession, unasked: list[str]) -> None:
        self._session = session
        self.unasked = unasked

    async def tools(self) -> list[Any]:
        """Return the tools that the server offers."""
        return list((await self._session.list_tools()).tools)

    async def ask(self, tool: str, **arguments: Any) -> tuple[str, bool]:
        """Return the text of an answer and whether it is an error."""
        found = await self._session.call_tool(tool, arguments)
        assert found.structured_content is None
        (content,) = found.content
        assert content.type == "text"
        return content.text, bool(found.is_error)


@asynccontextmanager
async def server(folders: Sequence[Path], *options: str) -> AsyncIterator[Asker]:
    """Start a server for `folders` and yield what asks it."""
    arguments = ["-m", "toolkit.telemetry.cli", "mcp", *options, *map(str, folders)]
    started = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    unasked: list[str] = []

    async def note(message: Any) -> None:
        unasked.append(type(message).__name__)

    async with (
        stdio_client(started) as (reading, writing),
        ClientSession(reading, writing, message_handler=note) as session,
    ):
        await session.initialize()
        yield Asker(session, unasked)
