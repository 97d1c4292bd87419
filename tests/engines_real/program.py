"""Plays a fixed program on one engine and writes down all it said, for others to be held against.

    python -m tests.engines_real.program ENGINE SPACE FOLDER [REFERENCE]

Every engine plays it in a process and an interpreter of its own, as the environments of vLLM,
SGLang and our own tools do not mix. ENGINE is the config's section as JSON. REFERENCE is the folder
of the performance others are held against; without one, this is it.

The program: GENERATIONS times, the population and the center answer the same prompts, tell how
likely they find what the reference wrote, and theta moves by rewards that were written down before.
The same prompts, because a cache kept across a change of weights shows on no others.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from germline.config import Config, load_config
from germline.protocols import Closable, Engine, TextScorer
from germline.run.build_parts import make_engine
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Completion, Decoding, Evaluation, Example, GermlineError, Perturbation

GENERATIONS = 5
MEMBERS = 12
PROMPTS = {"arithmetic": 8, "conciseness": 4, "countdown": 2}
# Long enough for a cache of prefixes to keep what they begin with, which is the same.
LONG = ["Say what the sum is, and nothing else. " * 7 + f"What is {k} + 4?" for k in (2, 3)]
EXAMPLES = sum(PROMPTS.values()) + len(LONG)
DECODING = Decoding(max_new_tokens=16)
CUT = Decoding(max_new_tokens=16, stop=(" is", "."))
SPACES: dict[str, dict[str, Any]] = {
    "low_rank": {"space": {"kind": "low_rank", "rank": 2}, "strategy": {"sigma": 0.02}},
    "lora": {
        "space": {"kind": "lora", "rank": 4, "init_scale_b": 0.2},
        "strategy": {"sigma": 0.05},
    },
    "full": {"space": "full", "strategy": {"sigma": 0.005}},
}
"""Sigmas at which members answer other things than the center does."""
LOG = "record.json"
Rows = Sequence[Sequence[Sequence[float]]]


@dataclass
class Record:
    """What one engine said in one space.

    Attributes:
        digests: of the masters: at the start, after playing without an update, and after each.
        tokens: `[generations + 1][members + 1][prompts]`; the center comes last, and theta has
            moved `generation` times.
        log_probabilities: natural logarithms of the reference's tokens, in the same order.
        margins: of a reference, for each of its tokens: by how much it was likelier than the
            second likeliest (difference of logarithms), and which token that was.
        finishes: why each text of `tokens` ended.
        cut: texts and reasons of the center where stop strings cut it.
        again: log-probabilities of the center before and after a population played.
        refused: what was said where theta was asked for as an adapter and is none.
    """

    digests: list[str] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    log_probabilities: list[Any] = field(default_factory=list)
    margins: list[Any] = field(default_factory=list)
    finishes: list[Any] = field(default_factory=list)
    cut: list[Any] = field(default_factory=list)
    again: list[Any] = field(default_factory=list)
    refused: str = ""


def config_of(engine: Mapping[str, Any] | str, space: str) -> Config:
    """Return the config of a performance."""
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
    """Return prompts of all shipped tasks: short and long ones, with and without chat template."""
    found: list[Example] = []
    for kind, many in PROMPTS.items():
        task = make_task(load_config({"task": kind}).task)
        found += [
            Example(len(found) + place, one.prompt, one.answer, one.chat)
            for place, one in enumerate(task.examples("train")[:many])
        ]
    found += [Example(len(found) + place, text, "", chat=True) for place, text in enumerate(LONG)]
    return found


def perform(engine: Engine, config: Config, folder: Path, reference: Record | None) -> Record:
    """Play the program, write the exports, and return what was said."""
    record, examples = Record(), prompts()
    strategy = make_strategy(config.strategy, run_seed=config.seed, generations=GENERATIONS)
    record.digests.append(engine.weights.digest())
    for generation in range(GENERATIONS + 1):
        population = strategy.ask(min(generation, GENERATIONS - 1))
        members: list[Perturbation | None] = [*population.members, None]
        played = engine.generate(members, examples, DECODING)
        texts = said(reference, generation) if reference else played
        record.tokens.append(_each(played, lambda one: list(one.tokens)))
        record.finishes.append(_each(played, lambda one: one.finish))
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
    _export(engine, folder, record)
    return record


def log_probabilities(
    engine: Engine,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    texts: Sequence[Sequence[Completion]],
) -> Rows:
    """Ask how likely members find each token of texts."""
    asked: Any = engine
    return _in_two(lambda *part: asked.log_probabilities(members, *part), examples, texts)


def margins(
    engine: Engine,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    texts: Sequence[Sequence[Completion]],
) -> list[list[Any]]:
    """Ask how clear a choice each token of greedy texts was, and what it was chosen over."""
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
    """Read short prompts and LONG ones apart, as rows of one batch are as long as the longest."""
    short = slice(0, len(examples) - len(LONG))
    long = slice(len(examples) - len(LONG), None)
    few, rest = (read(examples[part], [row[part] for row in texts]) for part in (short, long))
    return [[*first, *second] for first, second in zip(few, rest, strict=True)]


def recorded_rewards(generation: int) -> np.ndarray:
    """Return the same rewards for every engine, whatever it answered."""
    return np.random.default_rng([11, generation]).random((MEMBERS, EXAMPLES))


def said(record: Record, generation: int) -> list[list[Completion]]:
    """Return what was written in a generation; only its tokens count."""
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
    """Let the center be read before and after the population plays."""
    for _ in range(2):
        record.again.append(log_probabilities(engine, [None], examples, texts[-1:]))
        engine.generate(members, examples, DECODING)


def _export(engine: Engine, folder: Path, record: Record) -> None:
    engine.save_model(folder / "model")
    try:
        engine.save_adapter(folder / "adapter")
    except GermlineError as error:
        record.refused = str(error)


def _each(rows: Sequence[Sequence[Any]], change: Any) -> list[list[Any]]:
    return [[change(one) for one in row] for row in rows]


def load(folder: Path) -> Record:
    """Read what a performance wrote down."""
    return Record(**json.loads((folder / LOG).read_text()))


def run(engine: Mapping[str, Any] | str, space: str, folder: Path, reference: Path | None) -> None:
    """Perform with the engine a section names and write everything into a folder."""
    torch.set_num_threads(1)
    config = config_of(engine, space)
    held = load(reference) if reference else None
    made = make_engine(config)
    with closing(made) if isinstance(made, Closable) else nullcontext():
        record = perform(made, config, folder, held)
    (folder / LOG).write_text(json.dumps(asdict(record)))


if __name__ == "__main__":
    run(
        json.loads(sys.argv[1]),
        sys.argv[2],
        Path(sys.argv[3]),
        Path(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
