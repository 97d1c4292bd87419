"""Episodes of verifiers (v1) whose model calls go to an OpenAI-compatible endpoint.

Agents may be several, run several times in an episode, and have a harness of their own, which may
be any program. All episodes of a batch are played at the same time on one event loop. A model call
goes from the harness to the interception server of verifiers, which records it, and from there to
the endpoint. An agent without a harness, or with that of a plain chat, has `EndpointHarness`, which
needs no process.

A step that hangs is interrupted: by the alarm of the grader process where it holds the event loop,
which fails its episode alone, and else after `timeout_s` in which the episode has sent no request.
That time is counted on the event loop, so episodes do not fail because others are busy.

Known limits: text only; chat completions only; a request hook of a task cannot answer a tool call
in the place of a tool (`EndpointHarness` has no tool gate). `_interception` and `_shared_tools` of
an environment, `_pull_state` and `_exit_stack` of a toolset are no public names of verifiers 0.4;
tests/test_verifiers.py plays with them.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp
import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from verifiers.v1.clients.client import Client
from verifiers.v1.configs.env import default_agent_harness
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.runtimes import PrimeConfig
from verifiers.v1.types import content_text

from germline.environments.tools import MALFORMED, argument_problem, tool_response, unknown_tool
from germline.example import Ended, EndpointEpisode, EpisodeBatch
from germline.graders.worker_messages import PlayedEpisode, TimeUp, restart_step

__all__ = ["EndpointHarness"]  # where verifiers looks for a harness

ENDPOINT_HARNESS = "germline_endpoint"
"""The name of the module in which verifiers looks for `EndpointHarness`: an alias of this one."""
sys.modules[ENDPOINT_HARNESS] = sys.modules[__name__]

PLAIN_CHATS = ("null", "bash")
"""Harnesses in whose place `EndpointHarness` stands where the environment does not ask for them:
`bash` is the default of verifiers, and would let the model run commands on this machine."""

TOKEN = "GERMLINE_ENDPOINT_TOKEN"
"""The environment variable with the token of the endpoint."""

CONTEXT_IS_FULL = "context_length_exceeded"
"""The code of an endpoint's error when a conversation does not fit the model's context."""

DONE = vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""What a harness returns at the end of a conversation."""

TICKS = 8
"""The event loop has run so often within the time limit of an episode."""


def endpoint_agent(agent: Any, module: str, max_turns: int | None) -> dict[str, Any]:
    """Return the settings of an agent: on this machine, with limits, and never in a cloud."""
    limits = [limit for limit in (agent.max_turns, max_turns) if limit is not None]
    role: dict[str, Any] = {"max_turns": min(limits, default=None)}
    if isinstance(agent.runtime, PrimeConfig):
        role["runtime"] = {"type": "subprocess"}
    is_plain_chat = (
        default_agent_harness(module).id in PLAIN_CHATS
        if agent.harness is None
        else agent.harness.id == "null"
    )
    if is_plain_chat:
        role["harness"] = {"id": ENDPOINT_HARNESS}
    return role


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
                described = {"name": name, "description": tool.description or ""}
                function = {**described, "parameters": tool.input_schema}
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


class EndpointInterception(InterceptionServer):
    """The server of verifiers that records model calls; it knows which episode sends them."""

    def register(self, session: Any) -> Any:
        """Take up a run of an agent."""
        secrets = super().register(session)
        CURRENT.get().begin_run(session)
        return secrets

    def unregister(self, *secrets: str) -> None:
        """Let go of a run that has ended."""
        super().unregister(*secrets)
        CURRENT.get().moved()


class WatchedClient(Client):
    """A client of verifiers, during whose calls an episode has no time limit."""

    def __init__(self, client: Any, player: "EndpointPlayer") -> None:
        self._client = client
        self._player = player

    async def get_response(self, *arguments: Any, **named: Any) -> Any:
        """Return the reply to a request."""
        with self._player.asking():
            return await self._client.get_response(*arguments, **named)

    async def relay(self, *arguments: Any, **named: Any) -> Any:
        """Return the stream of a reply, which the endpoint sends when it is complete."""
        with self._player.asking():
            return await self._client.relay(*arguments, **named)

    async def relay_aux(self, *arguments: Any, **named: Any) -> Any:
        """Return the answer to a request that is no turn."""
        return await self._client.relay_aux(*arguments, **named)


@dataclass(eq=False)
class EndpointPlayer:
    """One episode while it is played; `EndpointHarness` sends its requests with `http`."""

    episode: EndpointEpisode
    url: str
    http: aiohttp.ClientSession
    make_toolsets: Callable[[], list[Any]]
    ended: Ended = "done"
    run: asyncio.Task[Any] | None = None
    _runs: int = 0
    _asking: int = 0
    _ticks: int = 0
    _is_late: bool = False

    def begin_run(self, session: Any) -> None:
        """Note a run of an agent: its requests get a seed of their own."""
        self.moved()
        session.client = WatchedClient(session.client, self)
        if session.ctx.client.base_url == self.url:
            seed = self.episode.seed + self._runs
            self._runs += 1
            sampling = session.ctx.sampling.model_copy(update={"seed": seed})
            session.ctx = replace(session.ctx, sampling=sampling)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Wait for the model, without a time limit."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1
            self.moved()

    def moved(self) -> None:
        """Give the next step the whole time."""
        self._ticks = 0
        restart_step()

    def tick(self) -> None:
        """Count time; stop an episode that has taken too much of it."""
        assert self.run is not None
        self._ticks = 0 if self._asking else self._ticks + 1
        if self._ticks > TICKS and not self.run.done():
            self._is_late = True
            self.run.cancel()

    async def play(self, env: Any, task: Any, context: Any) -> Any:
        """Play the episode to its end, or until a step takes too long."""
        CURRENT.set(self)
        self.run = asyncio.ensure_future(env.run_episode(task, context))
        try:
            episode = await self.run
        except asyncio.CancelledError:
            if self._is_late:
                raise TimeUp from None
            raise
        finally:
            self.moved()
        if self.ended == "done" and any(t.stop_condition == "max_turns" for t in episode.traces):
            self.ended = "max_turns"
        return episode


CURRENT: ContextVar[EndpointPlayer] = ContextVar("germline_endpoint_player")
"""The episode that is running."""


class EndpointHarness(vf.Harness[vf.HarnessConfig]):
    """A chat in this process; verifiers finds it by the name `ENDPOINT_HARNESS`."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Hold the conversation of a task until a reply calls no tool."""
        player = CURRENT.get()
        system, prompt = self.resolve_prompt(data)
        messages = [message_to_wire(message) for message in opening_messages(system, prompt)]
        tools = Tools(player.make_toolsets())
        try:
            await tools.open(trace)
            body = {"model": ctx.model, "messages": messages}
            if tools.schemas:
                body["tools"] = tools.schemas
            while True:
                reply = await _post(player, endpoint, secret, body)
                if isinstance(reply, str):
                    return _end_of(reply, trace, player)
                messages.append(reply)
                for call in reply.get("tool_calls") or ():
                    messages.append(await _answer(tools, call))
                if not reply.get("tool_calls"):
                    return DONE
        finally:
            await tools.close()


async def _post(
    player: EndpointPlayer, endpoint: str, secret: str, body: Mapping[str, Any]
) -> dict[str, Any] | str:
    """Return the message of the model, or the text of an error."""
    headers = {"Authorization": f"Bearer {secret}"}
    address = f"{endpoint}/chat/completions"
    async with player.http.post(address, json=body, headers=headers) as response:
        text = await response.text()
    if response.status != 200:
        return text
    message: dict[str, Any] = json.loads(text)["choices"][0]["message"]
    return message


def _end_of(error: str, trace: Any, player: EndpointPlayer) -> Any:
    """Return how a conversation ends whose last request was refused; verifiers knows the cause."""
    if CONTEXT_IS_FULL not in error or not trace.num_turns:
        return vf.ProgramResult(exit_code=1, stdout="", stderr=error)
    player.ended = "context"
    trace.stop("max_turns")
    return DONE


async def _answer(tools: Tools, call: Mapping[str, Any]) -> dict[str, Any]:
    name, written = call["function"]["name"], call["function"]["arguments"]
    content = await tools.call(name, json.loads(written)) if name else MALFORMED
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}


async def play_batch(
    env: Any,
    tasks: Sequence[Any],
    make_toolsets: Callable[[], list[Any]],
    batch: EpisodeBatch,
    parts_of: Callable[[Any], Mapping[str, float]],
) -> list[PlayedEpisode]:
    """Play the episodes of a batch at the same time; their rows have the numbers of tasks.

    The toolsets are those that `EndpointHarness` calls. `parts_of` returns the parts of the rubric
    of an episode of verifiers, or raises what a grader raises.
    """
    os.environ[TOKEN] = batch.token
    client = vf.EvalClientConfig(base_url=batch.url, api_key_var=TOKEN)
    players: list[EndpointPlayer] = []
    playing: list[asyncio.Task[Any]] = []
    connections = aiohttp.TCPConnector(limit=0)
    async with (
        env.shared_tools() as shared,
        EndpointInterception(
            state_service_secrets=tuple(
                server.state_secret for server in shared.values() if server.state_secret
            )
        ) as interception,
        aiohttp.ClientSession(connector=connections, timeout=aiohttp.ClientTimeout()) as http,
    ):
        env._interception, env._shared_tools = interception, shared
        clock = asyncio.ensure_future(_tick(players, batch.timeout_s / TICKS))
        try:
            for one in batch.episodes:
                player = EndpointPlayer(one, batch.url, http, make_toolsets)
                context = vf.ModelContext(one.model, client, vf.SamplingConfig(**batch.sampling))
                run = player.play(env, tasks[int(str(one.row["task"]))], context)
                playing.append(asyncio.ensure_future(run))
                await asyncio.sleep(0)
                players.append(player)
            await asyncio.wait(playing)
        finally:
            clock.cancel()
            env._interception, env._shared_tools = None, {}
    return [
        PlayedEpisode(partial(lambda one: parts_of(one.result()), run), player.ended)
        for run, player in zip(playing, players, strict=True)
    ]


async def _tick(players: list[EndpointPlayer], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        restart_step()
        for player in players:
            player.tick()
