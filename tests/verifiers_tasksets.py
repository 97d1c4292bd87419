"""Tasksets of verifiers v1 for tests; each is written to a file of its own."""

HEAD = "import verifiers.v1 as vf\n\n"

SUMS = (
    HEAD
    + """
class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 5)

    @vf.metric
    async def turns(self, trace) -> float:
        return trace.num_turns


class Config(vf.TasksetConfig):
    largest: int = 10


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for n in range(self.config.largest):
            row = Data(prompt=f"What is {n} + 1?", system_prompt="Add.", answer=str(n + 1))
            yield Sum(row, self.config.task)


__all__ = ["Sums"]
"""
)

DIALOG = (
    HEAD
    + """
class Dialog(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Counting(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            count = 0
            while not segment.terminated and count < TURNS:
                count += 1
                segment = await interaction.turn(f"{count}: {segment.last_reply}")
        interaction.trace.record_reward("count", count, 1.0)


class Dialogs(vf.Taskset[Dialog, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        while True:
            yield Dialog(vf.TaskData(prompt="Count."), self.config.task)


__all__ = ["Dialogs", "Counting"]
"""
)

TOOLS = (
    HEAD
    + """
class Seen(vf.State):
    calls: int = 0


class Shop(vf.Toolset[vf.ToolsetConfig, Seen]):
    @vf.tool
    def price(self, item: str) -> int:
        '''Tell the price of an item.'''
        self.state.calls += 1
        if item == "car":
            raise ValueError("not for sale")
        return len(item)


class Buy(vf.Task[vf.TaskData, Seen, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Shop(vf.ToolsetConfig())]

    @vf.reward
    async def calls(self, trace) -> float:
        return trace.state.calls


class Buys(vf.Taskset[Buy, vf.TasksetConfig]):
    def load(self):
        for item in ("tea", "bread", "cheese"):
            yield Buy(vf.TaskData(prompt=f"What is the price of {item}?"), self.config.task)


__all__ = ["Buys"]
"""
)

SETUP_RAISES = SUMS.replace(
    "    @vf.reward\n",
    "    async def setup(self, trace, runtime):\n        raise OSError('no disk')\n\n"
    "    @vf.reward\n",
    1,
)

V0 = """
import verifiers as vf


def load_environment(**arguments):
    return vf.SingleTurnEnv(**arguments)
"""

COUNTED = (
    HEAD
    + """
import asyncio
import os
import random


class Word(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Talk(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for number in range(TURNS):
                if segment.terminated:
                    break
                if segment.last_reply == "die":
                    os._exit(3)
                if segment.last_reply == "spin":
                    while True:
                        pass
                if segment.last_reply == "sleep":
                    await asyncio.sleep(10**6)
                if segment.last_reply == "raise":
                    raise ValueError("what a reply")
                if segment.last_reply == "away":
                    raise ConnectionError("no service")
                await asyncio.sleep(PAUSE_S * random.Random().random())
                segment = await interaction.turn(f"Go on with {number}.")


class Words(vf.Taskset[Word, vf.TasksetConfig]):
    def load(self):
        for number in range(10):
            yield Word(vf.TaskData(prompt=f"Word {number}?", system_prompt="Hi."), self.config.task)


__all__ = ["Words", "Talk"]
"""
)

ATTEMPTS = COUNTED.replace(
    "        async with agents",
    """        for _ in range(3):
            await agents.player.run(task)
        return
        async with agents""",
)

DEBATE = COUNTED.replace(
    "    player: vf.AgentConfig = vf.AgentConfig()\n",
    "    player: vf.AgentConfig = vf.AgentConfig()\n"
    "    critic: vf.AgentConfig = vf.AgentConfig()\n",
).replace(
    "        async with agents",
    """        agents.critic.trainable = False
        first = await agents.player.run(task)
        await agents.critic.run(Word(vf.TaskData(prompt=first.last_reply), task.config))
        return
        async with agents""",
)

OWN_CLIENT = (
    COUNTED.replace('__all__ = ["Words", "Talk"]', '__all__ = ["Words", "Program"]')
    + """

class Program(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            stream = await client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": data.prompt}], stream=True
            )
            async for _ in stream:
                pass
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""
)
