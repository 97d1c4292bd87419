"""Episodes of verifiers per second, with a policy that answers at once.

    python -m benchmarks.verifiers_rate            # in an environment with verifiers (make hosts)
    python -m benchmarks.verifiers_rate --workers 2 --episodes 256

Episodes of one turn and of six turns are played as a run plays them, on the direct path
(`task.client=direct`: up to so many grader processes, turn by turn) and over HTTP
(`task.client=http`: one grader process, whose requests this process answers). Batches of the two
paths alternate, and medians are compared. The start of the processes, in which verifiers is
imported, is not measured.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.instant_engine import InstantEngine
from germline.config import load_config
from germline.episodes import play_episodes
from germline.estimates.machine import MachineLoad
from germline.protocols import GraderProtocol
from germline.run.build_parts import make_decoding, make_graders
from germline.tasks import make_task
from germline.types import Decoding, Example

CLIENTS = ("direct", "http")

TASKSET = """
import verifiers.v1 as vf


class Turns(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def wrote(self, trace) -> float:
        return float(len(trace.last_reply) > 0)


class Config(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class Dialog(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            await interaction.turn()
            for turn in range(TURNS - 1):
                await interaction.turn(f"This is message {turn}.")


class Dialogs(vf.Taskset[Turns, vf.TasksetConfig]):
    def load(self):
        for number in range(2 * EPISODES):
            yield Turns(vf.TaskData(prompt=f"Begin {number}."), self.config.task)


__all__ = ["Dialogs", "Dialog"]
"""


def main() -> None:
    """Print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=128, help="episodes of a batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="most grader processes")
    options = parser.parse_args()
    load = MachineLoad()
    print("turns  client  episodes/s (median)  each batch")
    for turns in (1, 6):
        rates = measure(turns, options.episodes, options.repeats, options.workers)
        for client, each in zip(CLIENTS, rates, strict=True):
            shown = " ".join(f"{rate:.0f}" for rate in each)
            print(f"{turns:5}  {client:6}  {statistics.median(each):19.1f}  {shown}")
        direct, http = map(statistics.median, rates)
        print(f"{turns:5}  direct / http: {direct / http:.1f}")
    if (share := load.share_of_others()) is not None:
        # The processes that play the episodes count among the others.
        print(f"share of the cores that was busy besides this process: {share:.0%}")


def measure(turns: int, episodes: int, repeats: int, workers: int) -> list[list[float]]:
    """Return episodes per second of each batch, by client, without the first one of each."""
    rates: list[list[float]] = [[] for _ in CLIENTS]
    with ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        file = Path(folder) / f"turns_{turns}.py"
        text = TASKSET.replace("TURNS", str(turns)).replace("EPISODES", str(episodes))
        file.write_text(text, encoding="utf-8")
        played: list[tuple[GraderProtocol, Sequence[Example], Decoding]] = []
        for client in CLIENTS:
            task = {"kind": "verifiers", "env": str(file), "max_turns": turns, "client": client}
            graders = {"workers": workers, "timeout_s": 60.0}
            config = load_config({"model": "nano", "task": task, "graders": graders})
            made = make_task(config.task)
            pool = make_graders(config, made)
            opened.callback(pool.close)
            played.append((pool, made.examples("train")[:episodes], make_decoding(config, made)))
        for batch in range(repeats + 1):
            for each, one in zip(rates, played, strict=True):
                seconds = _play(*one, turns, batch)
                if batch:
                    each.append(episodes / seconds)
    return rates


def _play(
    pool: GraderProtocol, examples: Sequence[Example], decoding: Decoding, turns: int, batch: int
) -> float:
    """Play a batch of episodes; return the seconds it took."""
    engine = InstantEngine(lambda first, turn: f"{batch} {first} {turn}")
    began = time.perf_counter()
    (rollouts,) = play_episodes(engine, pool, [None], examples, decoding)
    seconds = time.perf_counter() - began
    assert all(one.grade.reward == 1.0 and len(one.turns) == 2 * turns - 1 for one in rollouts)
    return seconds


if __name__ == "__main__":
    main()
