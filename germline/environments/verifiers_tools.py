"""Tools and messages of the tasks of verifiers (v1), as germline's models read them.

`_pull_state` and `_exit_stack` of a toolset are no public names of verifiers 0.4.
"""

from collections.abc import Sequence
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from verifiers.v1.types import content_text

from germline.environments.tool_calls import tool_response, unknown_tool
from germline.environments.tool_schema import argument_problem


class Tools:
    """The tools of a task, called in this process."""

    def __init__(self, toolsets: Sequence[Any]) -> None:
        self._toolsets = toolsets
        self._servers: dict[str, tuple[Any, str]] = {}
        self.schemas: list[dict[str, Any]] = []

    async def open(self, trace: Any = None) -> "Tools":
        """Set the toolsets up for a rollout, or only describe their tools without one."""
        for toolset in self._toolsets:
            if getattr(toolset.config, "url", None):
                raise ValueError(
                    f"germline calls no tools of other servers, found url={toolset.config.url}"
                )
            if trace is not None:
                toolset._pull_state = lambda: _ready(trace.state)
                await toolset.setup()
                await toolset.setup_task(trace.task.data)
            server = MCPServer(toolset.server_name or type(toolset).__name__)
            toolset.register(server)
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                name = f"{prefix}{tool.name}"
                self._servers[name] = server, tool.name
                parameters = tool.input_schema
                described = {"name": name, "description": tool.description or ""}
                function = {**described, "parameters": parameters}
                self.schemas.append({"type": "function", "function": function})
        return self

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool; what goes wrong is told to the model."""
        if name not in self._servers:
            return unknown_tool(name, self._servers)
        server, own_name = self._servers[name]
        # The server checks types, and takes the values that JSON does not have.
        if problem := argument_problem(arguments, {}):
            return f"Error: wrong arguments of {name}: {problem}"
        try:
            result = await server.call_tool(own_name, arguments)
        except Exception as error:  # noqa: BLE001 - the model is told, and may try again
            return f"Error: {error}"
        texts = [block.text for block in result.content if block.type == "text"]
        return ("Error: " if result.is_error else "") + "\n".join(texts)

    async def close(self) -> None:
        """Release what the toolsets hold."""
        for toolset in self._toolsets:
            await toolset._exit_stack.aclose()


async def _ready(state: Any) -> Any:
    return state


def opening_messages(system: str | None, prompt: Any) -> list[Any]:
    """Return the messages before the first reply."""
    before = [] if system is None else [vf.SystemMessage(content=system)]
    if isinstance(prompt, str):
        return [*before, vf.UserMessage(content=prompt)]
    return [*before, *(prompt or [])]


def message_text(message: Any) -> str:
    """Return a message as the model reads it."""
    if isinstance(message.content, list) and any(p.type != "text" for p in message.content):
        raise ValueError("a message with images, and germline shows the model text only")
    text = str(content_text(message.content))
    return tool_response(text) if message.role == "tool" else text
