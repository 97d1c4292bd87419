"""Use the weights of a run or a model: score a task, answer prompts, or measure the KL."""

from __future__ import annotations  # help() shows the names of types as they are written here

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from germline.config import Config, Rows, TaskBase, load_config
from germline.environments.tools import is_unicode
from germline.evaluation import score_center
from germline.evaluation.behavior import Answer, behavior, recorded_answers
from germline.evaluation.held_out import HeldOutScorers
from germline.evaluation.kl_divergence import KlDivergence, TextDivergence, measure_texts
from germline.fleet import LocalFleet
from germline.graders.reward_functions import Rewards
from germline.protocols import Task, TextScorer
from germline.record import RunDirectory
from germline.record.atomic_files import check_writable, explain_write_errors, write_atomically
from germline.record.metrics_rows import rollout_fields
from germline.rollout import center_microbatch, cut_microbatches
from germline.run.build_parts import held_out_decoding, make_engine, make_graders
from germline.run.model_prompts import asks_chats, fit_task
from germline.run.weights import (
    generation_of_source,
    load_engine,
    load_single_model,
    method_of_run,
    newest_generation,
    open_source,
    writers,
)
from germline.tasks import make_task
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs, RowsLike, read_inputs
from germline.tasks.task_settings import scored_text_of
from germline.types import Completion, Decoding, Evaluation, Example, GermlineError, HeldOutScore

log = logging.getLogger(__name__)

EvaluationSplit = Literal["train", "test", "unseen"]
"""`unseen`: the test examples that no held-out score of a run was of, which chose nothing."""

COMPLETION_START = b'{"example": '
"""How a line of a file of completions begins."""


def evaluate(  # noqa: PLR0913 - all that a score depends on
    source: str,
    task: TaskBase | str | None = None,
    *,
    split: EvaluationSplit = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    generation: int | Literal["best"] | None = None,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
    samples: int = 1,
    temperature: float | None = None,
) -> tuple[HeldOutScore, Path]:
    """Score the weights of a run or a model on a task, and write every completion.

    `source` is a run directory, the folder of a PEFT adapter, or what `model` may be in a config.
    `task` is a config section or a short name; by default the run's own task, or the rows that are
    given with a model. `limit` is the number of examples, the first ones; `overrides` are settings
    of engine, microbatch and graders; `generation` is as in `export`. The split `unseen` has the
    test examples without those of the run's held-out scores, which chose its best generation.

    `temperature` is that of `held_out.temperature` by default, or 1 where several `samples` of each
    example are taken and it is 0; of these, the score has pass@k and majority@k as `at_k`.

    `reward` and `data` are what was given to `train`; with `task="rows"`, or with a model,
    functions and rows to score on instead. `out` is the file for the completions: by
    default `completions-TASK-SPLIT.jsonl` in the run directory, or
    `completions-MODEL-TASK-SPLIT.jsonl` in the working directory.

    Raises:
        GermlineError: a setting is wrong, the source cannot be loaded, or has no such generation.
    """
    if task is not None and not isinstance(task, TaskBase):
        task = load_config({"task": task}).task
    inputs = read_inputs(reward, data)
    is_run = (Path(source) / "run.json").exists()
    if task is None and inputs.rows is not None and not is_run:
        task = Rows()
    if task is not None and inputs.rewards:
        task = task.model_copy(update={"reward_functions": inputs.weights})
    evaluated = open_evaluation(
        source,
        task,
        split,
        limit,
        overrides,
        generation,
        inputs,
        samples=samples,
        temperature=temperature,
    )
    return score_to_file(evaluated, source, split, out)


@dataclass(frozen=True)
class SourceEvaluation:
    """The weights of a run or a model, and the examples to score them on.

    Attributes:
        samples: number of completions of each example.
        decoding: of the completions; a prompt search may have options of its own.
    """

    directory: RunDirectory | None
    config: Config
    task: Task
    examples: Sequence[Example]
    generation: int | None
    samples: int
    decoding: Decoding

    @property
    def temperature(self) -> float | None:
        """The temperature of the completions; None where the run searched for its own."""
        return None if _searches_temperature(self.directory) else self.decoding.temperature

    def at_temperature(self, temperature: float | None) -> SourceEvaluation:
        """Return the same evaluation at a temperature; a run that searched for its own keeps it."""
        if temperature is None or self.temperature is None:
            return self
        return replace(self, decoding=replace(self.decoding, temperature=temperature))

    def run(self, *, scorers: bool = True) -> tuple[HeldOutScore, Evaluation]:
        """Load the weights, generate and grade the completions, and release the weights."""
        directory, config, last = self.directory, self.config, self.generation
        if directory and last is None:
            last = newest_generation(directory)
        with ExitStack() as opened:
            engine = load_engine(directory, config, generation=last)
            opened.callback(engine.close)
            graders = make_graders(config, self.task)
            opened.callback(graders.close)
            asked = config.held_out.scorers if scorers else {}
            held_out_scorers = HeldOutScorers(asked, scored_text_of(self.task))
            opened.callback(held_out_scorers.close)
            fleet = LocalFleet(engine, graders, config.microbatch)
            evaluate = partial(fleet.evaluate_center, samples=self.samples)
            if directory:
                dimension = engine.weights.dimension
                method = method_of_run(directory, dimension, self.task, last)
                evaluate = partial(method.evaluate_center, fleet, samples=self.samples)
            updates = 0 if last is None else last + 1
            return score_center(
                evaluate, self.task, self.examples, self.decoding, updates, held_out_scorers
            )

    def measure_kl(self) -> tuple[KlDivergence, dict[str, float]]:
        """Generate completions of a run, and measure the KL of its weights from its start.

        The start is the run before its first update; both models are in memory at once. If members
        answer by vote, every voting member generates its own completions.

        Returns:
            The KL divergence, and the `evaluation.behavior.behavior` of the completions.

        Raises:
            GermlineError: the engine cannot compute log-probabilities.
        """
        directory, config = self.directory, self.config
        assert directory is not None
        readings: list[TextDivergence] = []
        answers: list[Answer] = []
        with ExitStack() as opened:
            tuned = load_engine(directory, config, generation=self.generation)
            opened.callback(tuned.close)
            start = make_engine(config, ancestors=directory.ancestors)
            opened.callback(start.close)
            if not isinstance(tuned, TextScorer) or not isinstance(start, TextScorer):
                raise GermlineError(
                    f"engine.kind={config.engine.kind} cannot compute the log-probabilities of a "
                    "text; use engine=inprocess"
                )
            size = center_microbatch(config.microbatch)
            for who in writers(directory, tuned.weights.dimension):
                for part in cut_microbatches([who], self.examples, size):
                    written = tuned.generate(part.members, part.examples, self.decoding)
                    sides = tuned.read, start.read
                    read = measure_texts(*sides, part.members, part.examples, written)[0]
                    each = zip(part.examples, written[0], read, strict=True)
                    answers += [
                        Answer.to(example, said, improbable=reading.improbable)
                        for example, said, reading in each
                    ]
                    readings += read
            is_own_task = config.task.title == directory.config.task.title
            scored = directory.held_out() if is_own_task else []
            before = recorded_answers(scored[0].samples) if scored else ()
            return KlDivergence.of(readings), behavior(answers, before, tuned.special_ids)


def open_evaluation(  # noqa: PLR0913 - all that a score depends on
    source: str,
    task: TaskBase | None = None,
    split: EvaluationSplit = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
    generation: int | Literal["best"] | None = None,
    inputs: PythonInputs = NO_INPUTS,
    *,
    samples: int = 1,
    temperature: float | None = None,
    seen: int | None = None,
) -> SourceEvaluation:
    """Find a source and load the examples of a task; the weights are not loaded yet.

    `seen` is the number of test examples that `unseen` leaves out; default: those of the source.
    """
    if split not in (splits := get_args(EvaluationSplit)):
        raise GermlineError(f"split must be {' or '.join(map(repr, splits))}, found {split!r}")
    counts: dict[str, Any] = {"limit": 1 if limit is None else limit, "samples": samples}
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise GermlineError(f"{name} must be a number from 1 on, found {count!r}")
    directory, config = open_source(source, task, overrides)
    if directory is None and task is None:
        raise GermlineError(
            f"evaluate: {source} is not a run directory, so name a task "
            "(task='countdown'), or give rows of your own (data=rows)"
        )
    last = generation_of_source(source, directory, generation)
    made = fit_task(config, make_task(config.task, inputs))
    if temperature is not None and _searches_temperature(directory):
        raise GermlineError(
            f"temperature={temperature:g}: {source} searched for its own (prompt_search), at which "
            "it answers: leave the temperature out"
        )
    decoding = _decoding(config, made, samples, temperature)
    examples = made.examples("test" if split == "unseen" else split)
    if split == "unseen":
        seen = seen_examples(directory) if seen is None else seen
        if len(examples) <= seen:
            raise GermlineError(
                f"split=unseen: the held-out scores of the run were of all {len(examples)} test "
                "examples of the task: train with fewer (held_out.examples), or hold out more rows"
            )
        examples = examples[seen:]
    return SourceEvaluation(directory, config, made, examples[:limit], last, samples, decoding)


def _searches_temperature(directory: RunDirectory | None) -> bool:
    return directory is not None and bool(directory.config.prompt_search.temperature)


def _decoding(config: Config, task: Task, samples: int, temperature: float | None) -> Decoding:
    """Return the decoding of an evaluation, whose samples must be able to differ."""
    load_config({"held_out": {"temperature": temperature}})
    decoding = held_out_decoding(config, task, temperature)
    if samples > 1 and not decoding.temperature:
        if temperature is not None:
            raise GermlineError(
                f"samples={samples}: at temperature 0 all samples of an example are equal: use "
                "temperature 1, or 1 sample"
            )
        decoding = replace(decoding, temperature=1.0)
    return decoding


def seen_examples(directory: RunDirectory | None) -> int:
    """Return how many test examples, the first ones, the held-out scores of a run were of."""
    if directory is None:
        raise GermlineError(
            "split=unseen leaves out the examples of a run's held-out scores, and a model has "
            "none: use split=test"
        )
    scored = (len(row.score.values) for row in directory.held_out())
    return max(directory.config.held_out.examples, *scored, 0)


def score_to_file(
    evaluated: SourceEvaluation, source: str, split: EvaluationSplit, out: Path | None = None
) -> tuple[HeldOutScore, Path]:
    """Score weights that were found, and write every completion; see `evaluate`.

    Raises:
        GermlineError: `out` is no file of an earlier evaluation, so it would be lost.
    """
    file = _completions_path(evaluated, source, split) if out is None else Path(out)
    if file.exists() and not _has_completions(file):
        raise GermlineError(
            f"out: {file} exists and holds no completions of an evaluation, so it is not replaced; "
            "name another file (--out)"
        )
    check_writable(file)
    score, evaluation = evaluated.run()
    examples = {example.index: example for example in evaluated.examples}
    rows = [
        {
            "example": rollout.example,
            **({"sample": rollout.member} if evaluated.samples > 1 else {}),
            "answer": examples[rollout.example].answer,
            **rollout_fields(rollout, examples[rollout.example]),
        }
        for rollout in evaluation.rollouts
    ]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    content = text.encode("utf-8", "backslashreplace")
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)
    return score, file


def _completions_path(evaluated: SourceEvaluation, source: str, split: EvaluationSplit) -> Path:
    """Name the file of completions: in the run directory, or of a model, which has none."""
    examples = f"{evaluated.task.name}-{split}"
    if evaluated.samples > 1:
        examples += f"-{evaluated.samples}-samples"
    if evaluated.directory is None:
        # As in the cache of Hugging Face: a/model and b/model have files of their own.
        name = os.path.normpath(source).strip("/").replace("/", "--")
        return Path(f"completions-{name}-{examples}.jsonl")
    if evaluated.generation is not None:
        after = "start" if evaluated.generation == -1 else evaluated.generation
        examples += f"-generation-{after}"
    return evaluated.directory.path / f"completions-{examples}.jsonl"


def _has_completions(file: Path) -> bool:
    if not file.is_file():  # a folder, or a device
        return False
    with file.open("rb") as opened:
        return opened.read(len(COMPLETION_START)) in (b"", COMPLETION_START)


def generate(  # noqa: PLR0913 - all that a completion depends on
    source: str,
    prompts: Sequence[str],
    *,
    chat: bool | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    overrides: Sequence[str] = (),
    generation: int | Literal["best"] | None = None,
) -> list[Completion]:
    """Generate answers to prompts with the weights of a run or a model.

    With `chat`, prompts go through the chat template, without it they are sent as they are. None:
    as the task of the run sends its own, also for a model that was exported from a run; through the
    template for any other model.

    `overrides` are settings of the engine, such as `engine=inprocess`; default: those of the run.
    `generation` is the last update of the run to include, -1 for none, or `best`: that before the
    best held-out score; default: the newest.

    Raises:
        GermlineError: a setting is out of range, or the source cannot be loaded, or has no such
            generation.
    """
    given: Any = prompts
    texts = given if isinstance(given, Sequence) and not isinstance(given, str) else [None]
    if not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise GermlineError(f"prompts must be a list of Unicode texts, found {prompts!r:.80}")
    if not prompts:
        return []
    sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    load_config({"task": sampling})
    directory, config = open_source(source, None, overrides)
    if chat is None:
        chat = asks_chats(directory, config)
        if not chat:
            log.warning(
                "prompts are sent as they are, as in the run that trained these weights; chat=True "
                "(--chat) sends them through the chat template"
            )
    examples = [Example(i, prompt, "", chat) for i, prompt in enumerate(prompts)]
    settings = Decoding(max_new_tokens, temperature, top_p, noise_seed=seed)
    last = generation_of_source(source, directory, generation)
    with closing(load_single_model(directory, config, generation=last)) as engine:
        return engine.generate([None], examples, settings)[0]
