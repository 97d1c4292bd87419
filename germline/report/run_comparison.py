"""Differences between the final held-out scores of several runs, on the same examples."""

from collections.abc import Sequence

from germline.evaluation.paired_difference import PairedDifference, paired_difference
from germline.report.run_facts import RunFacts


def differences_to_first(runs: Sequence[RunFacts]) -> list[PairedDifference | None]:
    """Return the last score of each run less that of the first run.

    None for the first run, for a run without a score after training, and where the recorded prompts
    show that two runs have other held-out examples.
    """
    return [_difference(run, runs[0]) for run in runs]


def why_no_difference(run: RunFacts, first: RunFacts) -> str:
    """Say why a run has no difference to the first one; empty for the first, or if it has one."""
    if run is first:
        return ""
    for one, name in ((run, "this run"), (first, "the first run")):
        if not one.scores or not one.scores[-1].generation:
            return f"none: {name} has no score after training"
    last, other = run.scores[-1], first.scores[-1]
    if last.metric != other.metric:
        return f"none: the metrics differ ({last.metric}, {other.metric} of the first run)"
    if len(last.values) != len(other.values):
        return f"none: the examples differ ({last.n}, {other.n} of the first run)"
    if _asked(run) != _asked(first):
        return "none: the examples differ"
    return "" if paired_difference(last, other) else "none: no example has a score in both"


def _difference(run: RunFacts, first: RunFacts) -> PairedDifference | None:
    if run is first or why_no_difference(run, first):
        return None
    return paired_difference(run.scores[-1], first.scores[-1])


def _asked(run: RunFacts) -> list[tuple[str, str]]:
    """Return the held-out prompts and gold answers that a run has recorded."""
    sampled = next((one.samples for one in run.held_out if one.samples), ())
    return [(sample.prompt, sample.answer) for sample in sampled]
