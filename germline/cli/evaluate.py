"""The command `germline eval`: score runs and models on a task, one or several as a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli.arguments import (
    MODEL_SETTINGS,
    EvaluationSplit,
    Generations,
    Limit,
    Source,
    TaskOption,
    runs_of_sources,
    split_words,
    task_of_sources,
)
from germline.cli.output import AsJson, difference_values, print_json, print_table, score_values
from germline.errors import count_of

if TYPE_CHECKING:
    from germline.evaluation.kl_divergence import KlDivergence
    from germline.evaluation.score_difference import PairedDifference
    from germline.record import RunDirectory
    from germline.run.inference import SourceEvaluation
    from germline.types import HeldOutScore

EVALUATION_SETTINGS = (*MODEL_SETTINGS, "task.", "graders.", "held_out.scorers")
"""Prefixes of settings that have an effect here; other settings are refused."""

EVALUATE_EXAMPLES = (
    "germline eval runs/sums --split test --kl",
    "germline eval nano --task countdown --limit 200",
    "germline eval runs/sums nano my-adapter --limit 200",
    "germline eval runs/sums --samples 8 --temperature 0.7",
    "germline eval runs/sums -g -1 -g best --split unseen",
)


def evaluate(  # noqa: PLR0913 - the options of a command
    source: Source,
    others: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="More runs, models or adapters, for one table; and settings task.*, engine.*, "
            "microbatch.*, graders.* and held_out.scorers.*.",
        ),
    ] = None,
    task: TaskOption = None,
    split: EvaluationSplit = "test",
    limit: Limit = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Completions of each example, for pass@k and majority@k.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Sampling temperature; default: that of held_out.temperature, which is 0 (greedy) "
            "unless it was set, and 1 with several --samples.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Output file of the completions; default: completions-TASK-SPLIT.jsonl (with "
            "--generation, completions-TASK-SPLIT-generation-G.jsonl) in the run directory, or "
            "completions-MODEL-TASK-SPLIT.jsonl in the working directory.",
        ),
    ] = None,
    generation: Generations = None,
    *,
    kl: Annotated[
        bool,
        typer.Option("--kl", help="Also measure the KL from the start of the run, and its texts."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Score runs, models and PEFT adapters on a task.

    Prints the mean with its 95 % interval, and writes the completions to a file. Of several sources
    or generations it prints the difference to the first on the same examples; if they are right or
    wrong, progressions (wrong before, right now) and regressions, with the p value of McNemar's
    test. A folder of several run seeds stands for its runs.

    With --kl it also prints the exact KL of each run from its start, along its completions, and how
    many answers are broken.
    """
    from germline.types import GermlineError

    more, settings = split_words("eval", others, EVALUATION_SETTINGS)
    sources, generations = runs_of_sources([source, *more]), generation or [None]
    several = len(sources) > 1 or len(generations) > 1
    if out is not None and several:
        raise GermlineError(
            f"eval: --out={out} names one file for the completions of several: leave it out, and "
            "each has a file of its own"
        )
    if kl and (samples > 1 or not all(map(_run_of, sources))):
        raise GermlineError(
            "eval: --kl compares runs with their start along one completion of each example: leave "
            "out models, adapters and --samples"
        )
    if sampling := next((one for one in settings if one.startswith("task.temperature=")), None):
        raise GermlineError(
            f"eval: {sampling} is the temperature of training: use --temperature "
            f"{sampling.partition('=')[2]}"
        )
    section = task_of_sources("eval", sources, task, settings)
    overrides = [setting for setting in settings if not setting.startswith("task.")]

    # After the cheap checks, because they import torch.
    from germline.config.config_files import model_source
    from germline.engines.pretrained import load_tokenizer
    from germline.run.inference import open_evaluation, score_to_file, seen_examples

    runs = [run for run in map(_run_of, sources) if run]
    asked = partial(
        open_evaluation,
        task=section,
        split=split,
        limit=limit,
        overrides=overrides,
        samples=samples,
        temperature=temperature,
        seen=max(map(seen_examples, runs)) if runs and split == "unseen" else None,
    )
    opened = [
        (one, number, asked(one, generation=number))
        for one in sources
        for number in (generations if len(sources) == 1 or _run_of(one) else [None])
    ]
    if several:  # a model that is not there costs no evaluation of the others
        configs = [evaluated.config for _, _, evaluated in opened]
        for model in dict.fromkeys(c.model for c in configs if c.engine.kind != "toy"):
            load_tokenizer(model_source(model))
    # All sources answer at the temperature of the first; a prompt search has its own.
    shared = next((one.temperature for *_, one in opened if one.temperature is not None), None)
    rows = [
        EvaluationRow(one, number, decoded, *score_to_file(decoded, one, split, out))
        for one, number, evaluated in opened
        for decoded in [evaluated.at_temperature(shared)]
    ]
    if kl:
        rows = [replace(row, kl=row.evaluated.measure_kl()) for row in rows]
    if as_json:
        print_json([_row_values(row, rows[0], split) for row in rows])
    else:
        _print_rows(rows)
        if split == "test" and (note := _note_on_best(rows)):
            typer.echo(note)


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One evaluation; its generation is as it was asked for, None for the newest.

    With `--kl`, `kl` has the divergence from the start of the run, and the behavior of the answers.
    """

    source: str
    generation: int | Literal["best"] | None
    evaluated: "SourceEvaluation"
    score: "HeldOutScore"
    completions: Path
    kl: "tuple[KlDivergence, dict[str, float]] | None" = None

    @property
    def run(self) -> "RunDirectory | None":
        """The run, or None for a model and an exported adapter."""
        return self.evaluated.directory

    def minus(self, first: "EvaluationRow") -> "PairedDifference | None":
        """Return the score less that of the first row, on the examples that both have."""
        from germline.evaluation.score_difference import paired_difference

        return None if self is first else paired_difference(self.score, first.score)


def _run_of(source: str) -> "RunDirectory | None":
    from germline.record import RunDirectory

    return RunDirectory.open(Path(source)) if (Path(source) / "run.json").exists() else None


def _print_rows(rows: Sequence[EvaluationRow]) -> None:
    from germline.report import text_format

    names = dict.fromkeys(
        one.metric for row in rows for one in (*row.score.at_k, *row.score.scorers)
    )
    columns = ["model", "generation", rows[0].score.metric, "n", "mean reward", *names]
    table = []
    for row in rows:
        beside = (row.score, *row.score.at_k, *row.score.scorers)
        score, *others = (text_format.score(one, bootstrap=True) for one in beside)
        known = dict(zip((one.metric for one in beside[1:]), others, strict=True))
        more = str(row.score.n), text_format.number(row.score.reward)
        cells = (known.get(name, "") for name in names)
        table.append((row.source, _generation(row), score, *more, *cells))
    if len(rows) > 1:
        columns.append("difference to the first")
        differences = [row.minus(rows[0]) for row in rows]
        shown = [text_format.difference(one) if one else "" for one in differences]
        table = [(*cells, one) for cells, one in zip(table, shown, strict=True)]
    print_table(columns, table)
    paired = "; differences: paired over examples" if len(rows) > 1 else ""
    typer.echo(f"means with 95 % intervals{_sampled(rows[0])}{paired}")
    for row in rows:
        name = f"{row.source} {_generation(row)}: " if len(rows) > 1 else ""
        for line in _remarks(row):
            typer.echo(f"{name}{line}")
    for sentence in _over_seeds(rows):
        typer.echo(sentence)
    typer.echo("completions: " + ", ".join(str(row.completions) for row in rows))


def _remarks(row: EvaluationRow) -> list[str]:
    """Say how the score of a row is to be read, and what `--kl` has measured."""
    from germline.report import text_format
    from germline.run.weights import writers

    lines = [text_format.scorer_line(one) for one in row.score.scorers if one.n < len(one.values)]
    voters = [one for one in writers(row.run, dimension=0) if one is not None] if row.run else []
    if voters:
        lines.append(f"each answer is the one that most of {len(voters)} members give")
    if row.run and (options := text_format.center_options(row.run.generations())):
        lines.append(f"with the most likely prompt options: {', '.join(options)}")
    if row.kl:
        kl, behavior = row.kl
        lines.append(
            f"KL(now || start) {kl.per_token:.3g} nats per token, "
            f"{text_format.number(kl.per_text)} ± {text_format.number(kl.standard_error)} per text "
            f"(exact, along {count_of(kl.texts, 'completions')}); perplexity under the start model "
            f"{text_format.number(kl.perplexity)}; {text_format.behavior_line(behavior)}"
        )
    return lines


def _sampled(row: EvaluationRow) -> str:
    """Name the decoding, which a prompt search may choose."""
    many = f", {row.evaluated.samples} samples" if row.evaluated.samples > 1 else ""
    temperature = row.evaluated.temperature
    if temperature is None:
        return many
    return f"{many}, at temperature {temperature:g}" if temperature else f"{many}, greedy"


def _note_on_best(rows: Sequence[EvaluationRow]) -> str:
    """Say that a generation was chosen on the examples that score it here; else nothing."""
    from germline.run.inference import seen_examples

    best = next((row for row in rows if row.generation == "best"), None)
    if best is None or best.evaluated.task.name != best.evaluated.config.task.title:
        return ""
    seen, count = seen_examples(best.run), len(best.score.values)
    of = f"the first {seen} of these {count}" if seen < count else f"these {count}"
    is_left = seen < len(best.evaluated.task.examples("test"))
    return (
        f"best was chosen by its score on {of} examples, so that score flatters it"
        f"{': --split unseen scores it on the others' if is_left else ''}"
    )


def _generation(row: EvaluationRow) -> str:
    if row.run is None:
        return "-"
    if row.generation == "best":
        return f"best ({row.score.generation - 1})"
    return "newest" if row.generation is None else str(row.generation)


def _over_seeds(rows: Sequence[EvaluationRow]) -> list[str]:
    from germline.evaluation.statistics import seed_statistics
    from germline.record.run_paths import is_seed_study
    from germline.report.text_format import over_seeds

    groups: dict[tuple[Path, object], list[float]] = {}
    for row in rows:
        folder = Path(row.source).parent
        if row.run is not None and is_seed_study(folder) and math.isfinite(row.score.mean):
            groups.setdefault((folder, row.generation), []).append(row.score.mean)
    return [
        f"over the {len(values)} run seeds of {folder}"
        f"{'' if generation is None else f' at generation {generation}'}: "
        f"{over_seeds(seed_statistics(values))}"
        for (folder, generation), values in groups.items()
        if len(values) > 1
    ]


def _row_values(row: EvaluationRow, first: EvaluationRow, split: str) -> dict[str, object]:
    difference = difference_values(row.minus(first))
    difference["to_first"] = difference.pop("mean")
    return {
        "source": row.source,
        "generation": row.generation,
        "split": split,
        "samples": row.evaluated.samples,
        "temperature": row.evaluated.temperature,
        **score_values(row.score, bootstrap=True),
        **{f"difference_{name}": one for name, one in difference.items()},
        **(dict(zip(("kl", "behavior"), row.kl, strict=True)) if row.kl else {}),
        "completions": row.completions,
    }
