"""What `germline eval` prints: one evaluation in words, or a table of several."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from germline import run
from germline.cli import tables, text_format
from germline.cli.json_output import difference_values, score_values
from germline.cli.word_wrap import print_stdout
from germline.config import TaskConfig
from germline.evaluation.degenerate_text import DegenerateTextShares
from germline.evaluation.kl_divergence import KlDivergence
from germline.evaluation.score_difference import PairedDifference, paired_difference
from germline.evaluation.seed_statistics import (
    SeedDifference,
    seed_difference,
    seed_statistics,
)
from germline.record import RunDirectory
from germline.record.seed_study import is_seed_study
from germline.report.text_format import center_options
from germline.run.load_run import count_voters
from germline.types import HeldOutScore, Split


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One evaluation of the table.

    Attributes:
        generation: as it was asked for; None for the newest weights of a run, and for a model.
        completions: the file that holds them.
        difference: the score less that of the first row, on the examples that both could be
            scored on; None in the first row, and where the examples differ.
        kl: from the start of the run, where it was measured.
        texts: shares of degenerate texts, likewise.
    """

    source: str
    generation: int | Literal["best"] | None
    score: HeldOutScore
    completions: Path
    difference: PairedDifference | None
    kl: KlDivergence | None = None
    texts: DegenerateTextShares | None = None


def score_sources(
    sources: Sequence[str],
    task: TaskConfig | None,
    generations: Sequence[int | Literal["best"] | None],
    *,
    split: Split,
    limit: int | None,
    overrides: Sequence[str],
    out: Path | None,
) -> list[EvaluationRow]:
    """Score every source, runs at every generation asked for.

    Raises:
        GermlineError: a source cannot be loaded, or has no such generation.
    """
    rows: list[EvaluationRow] = []
    for source in sources:
        has_generations = len(sources) == 1 or (Path(source) / "run.json").exists()
        for generation in generations if has_generations else [None]:
            score, completions = run.evaluate(
                source,
                task,
                split=split,
                limit=limit,
                overrides=overrides,
                out=out,
                generation=generation,
            )
            difference = paired_difference(score, rows[0].score) if rows else None
            rows.append(EvaluationRow(source, generation, score, completions, difference))
    return rows


def run_of(source: str) -> RunDirectory | None:
    """Open a source if it is a run directory."""
    return RunDirectory.open(Path(source)) if (Path(source) / "run.json").exists() else None


def print_evaluation(row: EvaluationRow, *, own_task: bool) -> None:
    """Print one evaluation in words.

    Args:
        row: the evaluation.
        own_task: whether a run was evaluated on its own task.
    """
    score = row.score
    caution = text_format.caution(score)
    print_stdout(
        f"{score.metric} {text_format.score(score)} "
        f"(mean and {text_format.kind_of_error(score)}, n {score.n}), "
        f"mean reward {text_format.number(score.reward)}{f'; {caution}' if caution else ''}"
    )
    for one in score.scorers:
        complete = f" (n {one.n})" if one.n == len(one.values) else ""  # else the line says it
        print_stdout(f"{text_format.scorer_line(one)}{complete}")
    source = run_of(row.source)
    voters = count_voters(source) if source else 0
    if voters:
        print_stdout(f"by vote: each answer is the one that most of {voters} members give")
    if source and own_task and (options := center_options(source.generations())):
        print_stdout(f"with the most likely prompt options: {', '.join(options)}")
    if row.kl and row.texts:
        kl, texts = row.kl, row.texts
        print_stdout(
            f"KL(now || start) {kl.per_token:.3g} nats per token, {kl.per_text:.3g} ± "
            f"{text_format.number(kl.standard_error)} per text (exact, along {kl.texts} "
            f"completions{' of each member that votes' if voters else ''}); perplexity under the "
            f"start model {kl.perplexity:.3g}"
        )
        print_stdout(
            f"degenerate texts {texts.garbage:.0%}: empty {texts.empty:.0%}, special tokens only "
            f"{texts.special_only:.0%}, loops {texts.looping:.0%}, improbable under the start "
            f"model {texts.improbable or 0:.0%}"
        )
    print_stdout(f"completions: {row.completions}")


def print_rows(rows: Sequence[EvaluationRow]) -> None:
    """Print several evaluations as a table."""
    scorers = dict.fromkeys(one.metric for row in rows for one in row.score.scorers)
    tables.print_table(
        (
            "model",
            "generation",
            rows[0].score.metric,
            "n",
            "mean reward",
            "difference to the first",
            *scorers,
        ),
        [
            (
                row.source,
                _generation(row),
                text_format.score(row.score),
                str(row.score.n),
                text_format.number(row.score.reward),
                text_format.difference(row.difference) if row.difference else "",
                *(_by_scorer(row.score, name) for name in scorers),
            )
            for row in rows
        ],
    )
    kind = text_format.kind_of_error(*(row.score for row in rows))
    print_stdout(
        f"scores: mean and {kind}; differences: paired over examples, with 95 % intervals "
        "(of examples, not of run seeds)"
    )
    for sentence in _over_seeds(rows):
        print_stdout(sentence)
    print_stdout("completions: " + ", ".join(str(row.completions) for row in rows))


def _generation(row: EvaluationRow) -> str:
    """Name the generation of a run; a model and an exported adapter have none."""
    if (Path(row.source) / "run.json").exists():
        if row.generation == "best":
            return f"best ({row.score.generation - 1})"
        return "newest" if row.generation is None else str(row.generation)
    return "-"


def _over_seeds(rows: Sequence[EvaluationRow]) -> list[str]:
    """Say the mean over the run seeds of each folder, and by how much the folders differ."""
    groups: dict[tuple[Path, object], dict[int, float]] = {}
    for row in rows:
        path = Path(row.source)
        is_seed = (path / "run.json").exists() and is_seed_study(path.parent)
        if is_seed and math.isfinite(row.score.mean):
            seed = RunDirectory.open(path).config.seed
            groups.setdefault((path.parent, row.generation), {})[seed] = row.score.mean
    several = {key: values for key, values in groups.items() if len(values) > 1}
    first = next(iter(several.values()), {})
    return [
        _mean_over_seeds(folder, generation, values)
        + (f"; {_to_the_first(seed_difference(values, first))}" if values is not first else "")
        for (folder, generation), values in several.items()
    ]


def _mean_over_seeds(folder: Path, generation: object, values: Mapping[int, float]) -> str:
    at = "" if generation is None else f" at generation {generation}"
    mean = text_format.over_seeds(seed_statistics([*values.values()]))
    return f"over the {len(values)} run seeds of {folder}{at}: {mean}"


def _to_the_first(found: SeedDifference) -> str:
    interval = ""
    if found.interval is not None:
        low, high = found.interval
        interval = f" (95 % interval {low:+.3g} to {high:+.3g}, {found.pairing})"
    return f"{found.mean:+.3g}{interval} to the first of these means"


def _by_scorer(score: HeldOutScore, name: str) -> str:
    """Format the score by one of `held_out.scorers`; empty where it did not score this row."""
    return next((text_format.score(one) for one in score.scorers if one.metric == name), "")


def row_values(row: EvaluationRow) -> dict[str, object]:
    """Return an evaluation as values for JSON."""
    return {
        "source": row.source,
        "generation": row.generation,
        **score_values(row.score),
        **difference_values(row.difference),
        **({"kl": asdict(row.kl)} if row.kl else {}),
        **({"degenerate_texts": asdict(row.texts)} if row.texts else {}),
        "completions": row.completions,
    }
