"""The model of an episode of verifiers (v1): a harness that asks germline's engine for replies.

verifiers plays an episode as a coroutine in which a harness asks a model server for replies. Here,
`PolicyHarness` asks a `Policy`, which waits for the reply that germline's engine generates: no
server, and no process per turn. Tools are called in this process too, in the text format of
`tool_calls`.

Known limits: one agent, whose conversation only grows; text only. The session of a rollout,
`graph`, and a toolset's `_pull_state` and `_exit_stack` are no public names of verifiers 0.4;
tests/test_verifiers.py calls them all.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from verifiers.v1 import graph
from verifiers.v1.interception.base import Interception
from verifiers.v1.types import content_text

from germline.environments.tool_calls import (
    MALFORMED,
    split_calls,
    tool_response,
    unknown_tool,
)
from germline.environments.tool_schema import argument_problem

__all__ = ["PolicyHarness"]  # where verifiers looks for a harness

HARNESS = "germline_policy"
"""The name of the module in which verifiers looks for `PolicyHarness`: an alias of this one."""
sys.modules[HARNESS] = sys.modules[__name__]


class NotPlayableError(Exception):
    """The environment does what germline cannot play."""


class Policy:
    """The model of an episode: it asks for a reply and waits until there is one.

    Args:
        make_toolsets: makes the tools of the task.

    Attributes:
        asked: whether a reply is waited for.
        asks: the messages that the reply answers, without those before the last reply.
        problem: what the environment did that germline cannot play.
        known: number of messages up to the last reply.
        session: of verifiers, with the limits and rules of the task.
    """

    def __init__(self, make_toolsets: Callable[[], Sequence[Any]] = tuple) -> None:
        self.asked = asyncio.Event()
        self.asks: Sequence[Any] = ()
        self.problem = ""
        self.known = 0
        self.session: Any = None
        self.tools: Tools | None = None
        self.make_toolsets = make_toolsets
        self._is_cut = False
        self._reply: asyncio.Future[str | None] | None = None

    async def reply_to(self, messages: Sequence[Any]) -> str | None:
        """Wait for the reply to new messages; None: no reply follows."""
        if self._is_cut:
            return None
        self.asks = messages
        self._reply = asyncio.get_running_loop().create_future()
        self.asked.set()
        return await self._reply

    def refuse(self, problem: str) -> NotPlayableError:
        """Note what cannot be played; return the error to raise."""
        self.problem = problem
        return NotPlayableError(problem)

    def answer(self, reply: str | None) -> None:
        """Give the reply that is waited for; None ends the episode."""
        self._is_cut = reply is None
        self.asked.clear()
        assert self._reply is not None
        self._reply.set_result(reply)


DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""What a harness returns at the end of a conversation."""

CURRENT: ContextVar[Policy] = ContextVar("germline_policy")
"""The policy of the episode that is running."""


class DirectInterception(Interception):
    """Hands the session of a rollout to its policy, in the place of an HTTP server."""

    async def start(self) -> None:
        """Start nothing."""

    @asynccontextmanager
    async def acquire(self, session: Any) -> AsyncIterator[tuple[str, str, str]]:
        """Yield the addresses of no server."""
        policy = CURRENT.get()
        if policy.session is not None:
            raise policy.refuse("runs its agent more than once in an episode")
        policy.session = session
        yield "http://127.0.0.1:9", "", ""


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
                raise NotPlayableError(f"has tools of the server {toolset.config.url}")
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

    @property
    def declared(self) -> list[Any]:
        """The tools as verifiers records them."""
        return [vf.Tool(**schema["function"]) for schema in self.schemas]

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
        raise NotPlayableError("shows images to the model")
    text = str(content_text(message.content))
    return tool_response(text) if message.role == "tool" else text


class PolicyHarness(vf.Harness[vf.HarnessConfig]):
    """Talks to the policy of the current episode; verifiers finds it by the name `HARNESS`."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # noqa: PLR0913 - the signature is that of verifiers
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Hold the conversation of a task until a reply calls no tool."""
        policy = CURRENT.get()
        if mcp_urls:
            raise policy.refuse(f"has tools of the servers {', '.join(mcp_urls)}")
        system, prompt = self.resolve_prompt(data)
        messages = opening_messages(system, prompt)
        if policy.tools is None:
            policy.tools = await Tools(policy.make_toolsets()).open(trace)
        while (answer := await _ask(policy, messages)) is not None:
            messages = [*messages, answer]
            for call in answer.tool_calls or ():
                content = await _call(policy, call)
                if content is None:
                    return DONE
                message = vf.ToolMessage(tool_call_id=call.id, content=content, name=call.name)
                messages.append(message)
            if not answer.tool_calls:
                break
        return DONE

    async def cleanup(self, trace: Any, runtime: Any) -> None:
        """Release the tools."""
        if (tools := CURRENT.get().tools) is not None:
            await tools.close()


async def _ask(policy: Policy, messages: list[Any]) -> Any:
    """Return the model's next message, recorded in the trace; None: the rollout is stopped."""
    session, tools = policy.session, policy.tools
    assert tools is not None
    if await session.refused() is not None:
        return None
    request = vf.Request(messages=messages, tools=tools.declared or None)
    request, rewrites, stopped = await session.rewrite_request(request)
    session.trace.request_rewrites.extend(rewrites)
    turn = graph.prepare_turn(session.trace, request.messages, request.tools)
    if stopped is not None:
        turn.commit_prompt()
        session.trace.stop(stopped)
        return None
    if turn.tail_start != policy.known:
        raise policy.refuse("rewrites messages that the model has read")
    text = await policy.reply_to(turn.tail)
    if text is None:
        turn.commit_prompt()
        session.trace.stop("max_turns")
        return None
    response = _response(text, session.ctx.model, policy)
    response, rewrites, stopped = await session.rewrite_response(response)
    session.trace.response_rewrites.extend(rewrites)
    node = turn.commit(response)
    session.consume_prepared(turn.tail)
    policy.known = len(request.messages) + 1
    stopped = stopped or await session.gate_tool_calls(node)
    if stopped is not None:
        session.trace.stop(stopped)
        return None
    return response.message


def _response(text: str, model: str, policy: Policy) -> Any:
    """Return a reply as verifiers records it, with its tool calls."""
    assert policy.tools is not None
    content, found = split_calls(text) if policy.tools.schemas else (text, [])
    calls = [
        vf.ToolCall(id=f"call-{policy.known}-{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(found)
    ]
    message = vf.AssistantMessage(content=content, tool_calls=calls or None)
    reason = "tool_calls" if calls else "stop"
    return vf.Response(id="", created=0, model=model, message=message, finish_reason=reason)


async def _call(policy: Policy, call: Any) -> str | None:
    """Return what a tool call results in; None: the task's own rules end the episode."""
    if not call.name:
        return MALFORMED
    arguments = json.loads(call.arguments)
    decision = await policy.session.decide_tool(call.id, call.name, arguments)
    if decision["action"] == "stop":
        return None
    if decision["action"] == "deny":
        return str(decision["message"]["content"])
    assert policy.tools is not None
    return await policy.tools.call(call.name, arguments)
