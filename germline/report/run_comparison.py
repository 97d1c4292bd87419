"""Differences of the last held-out scores of runs, over the same examples."""

from collections.abc import Sequence
from dataclasses import dataclass

from germline.evaluation.score_difference import PairedDifference, paired_difference
from germline.report.run_facts import RunFacts
from germline.report.seed_groups import SeedGroup


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison, and the run that its last score is compared with.

    Attributes:
        difference: the last score less that of the other run; None for a run that is compared with
            itself, and where `why_none` says why there is none.
        why_none: the reason; empty if there is a difference, or for a run compared with itself.
    """

    difference: PairedDifference | None
    why_none: str


def compared_runs(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> list[ComparedRun]:
    """Compare the last score of each run with that of the first run.

    Where several configs have several run seeds each, a run is compared with the run of the first
    config that has the same seed.

    Args:
        runs: of the comparison.
        groups: of them, as `seed_groups` returns them.
    """
    if len(groups) < 2:
        return [_compared(run, runs[0]) for run in runs]
    by_seed = {run.config.seed: run for run in groups[0].runs}
    return [_compared(run, by_seed.get(run.config.seed)) for run in runs]


def comparison_heading(groups: Sequence[SeedGroup]) -> str:
    """Name the runs that `compared_runs` compares with, as the heading of a column."""
    return "the first" if len(groups) < 2 else f"{groups[0].name}, same seed"


def _compared(run: RunFacts, other: RunFacts | None) -> ComparedRun:
    if run is other:
        return ComparedRun(None, "")
    why = _why_no_difference(run, other) if other else "none: no run has the same seed"
    found = paired_difference(run.scores[-1], other.scores[-1]) if other and not why else None
    return ComparedRun(found, why)


def _why_no_difference(run: RunFacts, first: RunFacts) -> str:
    """Say why a run has no difference to another one; empty if it has one."""
    for one, name in ((run, "this run"), (first, first.name)):
        if not one.scores or not one.scores[-1].generation:
            return f"none: {name} has no score after training"
    last, other = run.scores[-1], first.scores[-1]
    if last.metric != other.metric:
        return f"none: the metrics differ ({last.metric}, {other.metric} of {first.name})"
    if _asked(run) != _asked(first) or not paired_difference(last, other):
        return "none: scored on other examples (germline eval scores both on the same)"
    return ""


def _asked(run: RunFacts) -> list[tuple[str, str]]:
    """Return the held-out prompts and gold answers that a run has recorded."""
    sampled = next((one.samples for one in run.held_out if one.samples), ())
    return [(sample.prompt, sample.answer) for sample in sampled]
