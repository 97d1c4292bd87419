"""Runs a fixed program on one engine and records its outputs, which tests compare.

    python -m tests.engines_real.program ENGINE SPACE FOLDER [REFERENCE]

Every engine runs it in a process and an interpreter of its own, because the environments of vLLM,
SGLang and the project's own tools conflict. ENGINE is the config's section as JSON. REFERENCE is
the folder of the reference recording; without it, this recording is the reference.

The program: GENERATIONS times, the population and the center generate for the same prompts and
score the reference's completions, and an update with recorded rewards is applied. The prompts stay
the same, because only repeated prompts show a cache that was kept across a change of weights.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from germline.config import Config, load_config
from germline.protocols import Engine, TextScorer
from germline.run.build_parts import make_engine
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Completion, Decoding, Evaluation, Example, Perturbation

GENERATIONS = 4
MEMBERS = 12
PROMPTS = {"arithmetic": 8, "conciseness": 4, "countdown": 2}
# Long enough for a prefix cache to keep their common prefix.
LONG = ["Say what the sum is, and nothing else. " * 7 + f"What is {k} + 4?" for k in (2, 3)]
EXAMPLES = sum(PROMPTS.values()) + len(LONG)
DECODING = Decoding(max_new_tokens=16)
ANSWERS = ("What is 2 + 3?", "Is it?", "What is the capital of France?")
"""What the turns of a conversation are answered with."""
CUT = Decoding(max_new_tokens=16, stop=(" is", "."))
SPACES: dict[str, dict[str, Any]] = {
    "low_rank": {"space": {"kind": "low_rank", "rank": 2}, "strategy": {"sigma": 0.02}},
    "lora": {
        "space": {"kind": "lora", "rank": 4, "init_scale_b": 0.2},
        "strategy": {"sigma": 0.05},
    },
    "full": {"space": "full", "strategy": {"sigma": 0.005}},
}
"""With these sigmas the members' completions differ from the center's."""
LOG = "record.json"
Rows = Sequence[Sequence[Sequence[float]]]


@dataclass
class Record:
    """The outputs of one engine in one space.

    Attributes:
        digests: of the masters: at the start, after an evaluation without an update, and after
            each update.
        tokens: `[generations + 1][members + 1][prompts]`; the center comes last, after
            `generation` updates.
        log_probabilities: natural logarithms of the reference's tokens, in the same order.
        margins: of a reference, for each of its tokens: the difference of its log-probability and
            that of the second most likely token, and that token.
        finishes: why each text of `tokens` ended.
        cut: texts and reasons of the center's completions with stop strings.
        again: log-probabilities of the center before and after an evaluation of the population.
        turns: tokens of every turn of conversations of some members and the center,
            `[members][prompts][turns]`.
    """

    digests: list[str] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    log_probabilities: list[Any] = field(default_factory=list)
    margins: list[Any] = field(default_factory=list)
    finishes: list[Any] = field(default_factory=list)
    cut: list[Any] = field(default_factory=list)
    again: list[Any] = field(default_factory=list)
    turns: list[Any] = field(default_factory=list)


def config_of(engine: Mapping[str, Any] | str, space: str) -> Config:
    """Return the config of a recording."""
    chosen = SPACES[space]
    return load_config(
        {
            "model": "nano",
            "engine": engine,
            "space": chosen["space"],
            "strategy": {"population": MEMBERS, "learning_rate": 0.02, **chosen["strategy"]},
            "seed": 3,
            "batch_size": EXAMPLES,
            "generations": GENERATIONS,
        }
    )


def prompts() -> list[Example]:
    """Return prompts of all built-in tasks: short and long, with and without chat template."""
    found: list[Example] = []
    for kind, many in PROMPTS.items():
        task = make_task(load_config({"task": kind}).task)
        found += [
            Example(len(found) + place, one.prompt, one.answer, one.chat)
            for place, one in enumerate(task.examples("train")[:many])
        ]
    found += [Example(len(found) + place, text, "", chat=True) for place, text in enumerate(LONG)]
    return found


def run_program(engine: Engine, config: Config, reference: Record | None) -> Record:
    """Run the program, and return the outputs."""
    record, examples = Record(), prompts()
    strategy = make_strategy(config.strategy, run_seed=config.seed, generations=GENERATIONS)
    record.digests.append(engine.weights.digest())
    for generation in range(GENERATIONS + 1):
        population = strategy.ask(min(generation, GENERATIONS - 1))
        members: list[Perturbation | None] = [*population.members, None]
        generated = engine.generate(members, examples, DECODING)
        texts = completions_of(reference, generation) if reference else generated
        record.tokens.append(_each(generated, lambda one: list(one.tokens)))
        record.finishes.append(_each(generated, lambda one: one.finish))
        record.log_probabilities.append(log_probabilities(engine, members, examples, texts))
        if reference is None:
            record.margins.append(margins(engine, members, examples, texts))
        if generation == 0:
            record.digests.append(engine.weights.digest())
        if generation < GENERATIONS:
            rewards = Evaluation(recorded_rewards(generation), (), 0, 0.0)
            shaped = utilities(config.shaping, rewards, antithetic=population.antithetic)
            engine.apply(strategy.tell(population, shaped))
            record.digests.append(engine.weights.digest())
    _leave_no_trace(engine, record, examples, members, texts)
    cut = engine.generate([None], examples, CUT)
    record.cut.extend(_each(cut, lambda one: [one.text, one.finish]))
    record.turns = conversations(engine, members[-3:], examples[:6])
    return record


def conversations(
    engine: Engine, members: Sequence[Perturbation | None], examples: Sequence[Example]
) -> list[list[list[list[int]]]]:
    """Return the tokens of every turn, answered by ANSWERS: `[members][prompts][turns]`."""
    turns: list[list[list[list[int]]]] = [[[] for _ in examples] for _ in members]

    def reply(places: Sequence[tuple[int, int]], written: Sequence[Completion]) -> list[str | None]:
        messages: list[str | None] = []
        for (member, row), completion in zip(places, written, strict=True):
            own = turns[member][row]
            own.append(list(completion.tokens))
            messages.append(ANSWERS[len(own) - 1] if len(own) <= len(ANSWERS) else None)
        return messages

    engine.converse(members, [examples] * len(members), DECODING, reply)
    return turns


def log_probabilities(
    engine: Engine,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    texts: Sequence[Sequence[Completion]],
) -> Rows:
    """Return the members' log-probabilities of each token of texts."""
    return _in_two(lambda *part: engine.log_probabilities(members, *part), examples, texts)


def margins(
    engine: Engine,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    texts: Sequence[Sequence[Completion]],
) -> list[list[Any]]:
    """Return the margin of each token of greedy texts, and the second most likely token."""
    assert isinstance(engine, TextScorer)
    read = _in_two(lambda *part: engine.read(members, *part), examples, texts)
    return _each(read, lambda logits: _two_best(logits.topk(2)))


def _two_best(best: Any) -> list[Any]:
    return [(-best.values.diff()).flatten().tolist(), best.indices[:, 1].tolist()]


def _in_two(
    read: Callable[..., list[list[Any]]],
    examples: Sequence[Example],
    texts: Sequence[Sequence[Completion]],
) -> list[list[Any]]:
    """Score short prompts and LONG ones apart, as rows of one batch are as long as the longest."""
    short = slice(0, len(examples) - len(LONG))
    long = slice(len(examples) - len(LONG), None)
    few, rest = (read(examples[part], [row[part] for row in texts]) for part in (short, long))
    return [[*first, *second] for first, second in zip(few, rest, strict=True)]


def recorded_rewards(generation: int) -> np.ndarray:
    """Return the same rewards for every engine, whatever it generated."""
    return np.random.default_rng([11, generation]).random((MEMBERS, EXAMPLES))


def completions_of(record: Record, generation: int) -> list[list[Completion]]:
    """Return the completions of a generation; only their tokens are set."""
    return _each(
        record.tokens[generation], lambda tokens: Completion("", tuple(tokens), "length", 0)
    )


def _leave_no_trace(
    engine: Engine,
    record: Record,
    examples: Sequence[Example],
    members: Sequence[Perturbation | None],
    texts: Sequence[Sequence[Completion]],
) -> None:
    """Score with the center before and after an evaluation of the population."""
    record.again.append(log_probabilities(engine, [None], examples, texts[-1:]))
    engine.generate(members, examples, DECODING)
    record.again.append(log_probabilities(engine, [None], examples, texts[-1:]))


def _each(rows: Sequence[Sequence[Any]], change: Any) -> list[list[Any]]:
    return [[change(one) for one in row] for row in rows]


def load(folder: Path) -> Record:
    """Read a recording."""
    return Record(**json.loads((folder / LOG).read_text()))


def run(engine: Mapping[str, Any] | str, space: str, folder: Path, reference: Path | None) -> None:
    """Run the program with the engine of a section and write the recording into a folder."""
    torch.set_num_threads(1)
    config = config_of(engine, space)
    expected = load(reference) if reference else None
    made = make_engine(config)
    with closing(made):
        record = run_program(made, config, expected)
    (folder / LOG).write_text(json.dumps(asdict(record)))


if __name__ == "__main__":
    run(
        json.loads(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        Path(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
