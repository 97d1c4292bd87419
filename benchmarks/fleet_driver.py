"""CPU time of a fleet's driver for every completion, in microseconds.

    python -m benchmarks.fleet_driver              # a table of docs/scaling.md

One microbatch of 16 members x 64 prompts, with completions of 256 tokens, passes through all steps
of the driver; the grader of countdown runs in a process of its own. The smallest of a few repeats
is reported.
"""

import pickle
import time
from collections.abc import Callable, Sequence

import numpy as np

from germline.config import load_config
from germline.fleet import byte_accounting
from germline.fleet.remote_engine import JobDone
from germline.fleet.worker_jobs import GenerateJob
from germline.rollout import Microbatch, gather_rewards
from germline.run.build_parts import make_graders
from germline.tasks import make_task
from germline.types import Completion, Decoding, Example, SeedPerturbation

MEMBERS, PROMPTS, TOKENS = 16, 64, 256
REPEATS = 7


def main() -> None:
    """Print the table."""
    config = load_config({"task": "countdown", "graders": {"workers": 1}})
    task = make_task(config.task)
    examples = task.examples("train")[:PROMPTS]
    members = [
        SeedPerturbation(0, 0, place // 2, 1 - 2 * (place % 2), 1e-3) for place in range(MEMBERS)
    ]
    job = GenerateJob(members, examples, Decoding(TOKENS))
    answer = completions(examples)
    there, back = pickle.dumps(job), pickle.dumps(JobDone(answer))
    with make_graders(config, task) as graders:
        microbatch = Microbatch(0, 0, members, examples)

        def graded() -> None:
            microbatch.with_completions(answer, graders).grades.result()

        graded()
        generated = microbatch.with_completions(answer, graders)
        work: dict[str, Callable[[], object]] = {
            "pickling the job": lambda: pickle.dumps(job),
            "unpickling the answer": lambda: pickle.loads(back),
            "validating the answer": lambda: job.is_valid_result(answer),
            "counting bytes of both": lambda: (
                byte_accounting.sent_bytes(job),
                byte_accounting.received_bytes(job, answer),
            ),
            "submitting to graders, collecting grades": graded,
            "gathering": lambda: gather_rewards([generated], MEMBERS, examples, 1.0),
        }
        taken = {name: least(step) / (MEMBERS * PROMPTS) for name, step in work.items()}
    print(f"{MEMBERS} members x {PROMPTS} prompts, completions of {TOKENS} tokens: ", end="")
    print(f"{len(there) / PROMPTS:,.0f} bytes per prompt of a microbatch, ", end="")
    print(f"{len(back) / MEMBERS / PROMPTS:,.0f} per completion\n")
    print("| | microseconds per completion |\n|---|---|")
    for name, seconds in taken.items():
        print(f"| {name} | {seconds * 1e6:.1f} |")
    print(f"| in all | {sum(taken.values()) * 1e6:.1f} |")


def completions(examples: Sequence[Example]) -> list[list[Completion]]:
    """Make completions with different texts, and token ids of a vocabulary of 150,000."""
    chance = np.random.default_rng(0)
    rows = []
    for _ in range(MEMBERS):
        tokens = chance.integers(150_000, size=(len(examples), TOKENS)).tolist()
        texts = [" ".join(f"{token % 10_000:04}" for token in one[:200]) for one in tokens]
        rows.append(
            [
                Completion(f"<think>{text}</think>\n<answer>1 + 2</answer>", tuple(one), "eos", 256)
                for text, one in zip(texts, tokens, strict=True)
            ]
        )
    return rows


def least(work: Callable[[], object]) -> float:
    """Return the smallest CPU seconds of a few repeats."""
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
