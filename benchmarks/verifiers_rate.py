"""Episodes of verifiers per second, with a policy that answers at once.

    python -m benchmarks.verifiers_rate            # in an environment with verifiers (make hosts)
    python -m benchmarks.verifiers_rate --workers 2 --episodes 256

Episodes of one turn and of six turns are played by grader processes, as a run plays them: all
episodes of a batch make a turn, then all make the next one. The start of the processes, in which
verifiers is imported, is not measured.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from germline.config import Verifiers
from germline.episode_types import Transcript
from germline.graders.pool import GraderPool
from germline.protocols import EpisodeTask, Task
from germline.tasks import make_task
from germline.types import Example

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
        for number in range(64):
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
    print("turns  episodes/s (median)  each batch")
    with tempfile.TemporaryDirectory() as folder:
        for turns in (1, 6):
            file = Path(folder) / f"turns_{turns}.py"
            file.write_text(TASKSET.replace("TURNS", str(turns)), encoding="utf-8")
            task = make_task(Verifiers(env=str(file), max_turns=turns))
            rates = measure(task, turns, options.episodes, options.repeats, options.workers)
            shown = " ".join(f"{rate:.0f}" for rate in rates)
            print(f"{turns:5}  {statistics.median(rates):19.1f}  {shown}")


def measure(task: Task, turns: int, episodes: int, repeats: int, workers: int) -> list[float]:
    """Return episodes per second of each batch but the first, which starts the processes."""
    assert isinstance(task, EpisodeTask)
    rows = task.examples("train")
    examples = [rows[number % len(rows)] for number in range(episodes)]
    with GraderPool(
        task.episode_grader,
        task.rubric,
        task.floor,
        workers=workers,
        timeout_s=60.0,
        max_turns=turns,
    ) as pool:
        times = [_play(pool, examples, turns, batch) for batch in range(repeats + 1)]
    return [episodes / one for one in times[1:]]


def _play(pool: GraderPool, examples: list[Example], turns: int, batch: int) -> float:
    """Play a batch of episodes turn by turn; return the seconds it took."""
    began = time.perf_counter()
    for turn in range(turns + 1):
        asked = [
            Transcript(tuple(f"{batch} {place} {one}" for one in range(turn)), seed=0)
            for place in range(len(examples))
        ]
        grades = pool.submit(asked, examples).result()
    assert all(grade.reward == 1.0 for grade in grades)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
