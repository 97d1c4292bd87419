"""Several evaluations in one table: scores with their errors, and differences to the first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from germline import run
from germline.cli import tables, text_format
from germline.cli.json_output import difference_values, print_json, score_values
from germline.cli.word_wrap import print_stdout
from germline.config import TaskConfig
from germline.evaluation.degenerate_text import DegenerateTextShares
from germline.evaluation.kl_divergence import KlDivergence
from germline.evaluation.paired_difference import PairedDifference, paired_difference
from germline.evaluation.seed_statistics import (
    SeedDifference,
    seed_difference,
    seed_statistics,
)
from germline.record import RunDirectory
from germline.record.seed_study import is_seed_study
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
        for generation in generations if (Path(source) / "run.json").exists() else [None]:
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


def print_rows(rows: Sequence[EvaluationRow], *, as_json: bool) -> None:
    """Print the rows as a table, or as one JSON document."""
    if as_json:
        print_json([_as_json(row) for row in rows])
        return
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


def _as_json(row: EvaluationRow) -> dict[str, object]:
    return {
        "source": row.source,
        "generation": row.generation,
        **score_values(row.score),
        **difference_values(row.difference),
        **({"kl": asdict(row.kl)} if row.kl else {}),
        **({"degenerate_texts": asdict(row.texts)} if row.texts else {}),
        "completions": row.completions,
    }
