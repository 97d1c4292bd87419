"""Differences of final held-out scores: of runs on the same examples, of configs over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from germline.evaluation.paired_difference import PairedDifference, paired_difference
from germline.evaluation.seed_statistics import SeedDifference, seed_difference
from germline.report.run_facts import RunFacts
from germline.report.seed_curves import FEWEST_CONFIGS, FEWEST_SEEDS, SeedGroup
from germline.report.text_format import number

MORE_SEEDS = (
    "More seeds may decide: repeat germline train of both configs with more seeds (such as "
    "seeds=0..9) and the same --out, which keeps the seeds that are trained."
)


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
        groups: those of them that differ in their seed alone, as `seed_groups` returns them.
    """
    if len(groups) < FEWEST_CONFIGS:
        return [_compared(run, runs[0]) for run in runs]
    by_seed = {run.config.seed: run for run in groups[0].runs}
    why = f"none: {groups[0].name} has no run of this seed with its settings"
    return [_compared(run, by_seed.get(run.config.seed), why) for run in runs]


def compared_with(groups: Sequence[SeedGroup]) -> str:
    """Name the runs that `compared_runs` compares with, as the heading of a column."""
    return "the first" if len(groups) < FEWEST_CONFIGS else f"{groups[0].name}, same seed"


def headline(runs: Sequence[RunFacts], groups: Sequence[SeedGroup]) -> str:
    """Say what is compared: runs, or configs with several run seeds each."""
    if not groups or sum(len(group.runs) for group in groups) < len(runs):
        return f"{len(runs)} runs side by side"
    if len(groups) < FEWEST_CONFIGS:
        return f"{groups[0].name}: {len(runs)} seeds of one config"
    sizes = {len(group.runs) for group in groups}
    seeds = f"{sizes.pop()} seeds each" if len(sizes) == 1 else f"{len(runs)} runs in all"
    return f"{len(groups)} configs side by side, {seeds}"


def _compared(run: RunFacts, other: RunFacts | None, why_no_other: str = "") -> ComparedRun:
    if run is other:
        return ComparedRun(None, "")
    why = _why_no_difference(run, other) if other else why_no_other
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
    if len(last.values) != len(other.values):
        return (
            f"none: scored on {last.n} examples, {first.name} on {other.n} (germline eval scores "
            "both on the same)"
        )
    if _asked(run) != _asked(first):
        return "none: scored on other examples (germline eval scores both on the same)"
    return "" if paired_difference(last, other) else "none: no example has a score in both"


def seed_difference_to_first(group: SeedGroup, first: SeedGroup) -> SeedDifference | None:
    """Return the mean last score of a config over its seeds, less that of the first config.

    None for the first config, and where `seed_verdict` says why there is none.
    """
    if group is first or _why_no_seed_difference(group, first):
        return None
    return _seed_difference(group, first)


def seed_verdict(group: SeedGroup, first: SeedGroup) -> str:
    """Say in a sentence whether a config is better than the first one; empty for the first."""
    if group is first:
        return ""
    if why := _why_no_seed_difference(group, first):
        return f"{group.name} and {first.name} are not compared over seeds: {why}."
    found = _seed_difference(group, first)
    sentence = _sentence(found, group, first)
    if not found.decides:
        sentence += f" {MORE_SEEDS}"
    unfinished = sum(not run.has_ended for one in (group, first) for run in one.counted)
    return f"{sentence} Runs that have not ended: {unfinished}." if unfinished else sentence


def _sentence(found: SeedDifference, group: SeedGroup, first: SeedGroup) -> str:
    seeds = str(found.seeds[0]) if found.paired else "{} and {}".format(*found.seeds)
    names, less = f"{group.name} and {first.name}", f"{group.name} minus {first.name}"
    if found.interval is None:
        same = f"{less} is {found.mean:+.3g}" if found.mean else "they are equal"
        each = "in every seed" if found.paired else "in all seeds of each config"
        return (
            f"{seeds} seeds do not decide between {names}: {same} {each}, so there is no interval."
        )
    low, high = found.interval
    if not found.decides:
        return (
            f"{seeds} seeds do not decide between {names}: {less} is {found.mean:+.3g} "
            f"(95 % interval {low:+.3g} to {high:+.3g}, {found.pairing})."
        )
    higher_is_better = group.counted[0].scores[-1].higher_is_better
    is_higher = found.mean > 0
    word = ("lower", "higher") if higher_is_better is None else ("worse", "better")
    by = sorted(map(abs, (low, high)))
    return (
        f"{group.name} is {word[is_higher == (higher_is_better is not False)]} than {first.name} "
        f"by {number(abs(found.mean))} (95 % interval {number(by[0])} to {number(by[1])}, {seeds} "
        f"seeds, {found.pairing})."
    )


def _seed_difference(group: SeedGroup, first: SeedGroup) -> SeedDifference:
    return seed_difference(
        *({run.config.seed: run.scores[-1].mean for run in one.counted} for one in (group, first))
    )


def _why_no_seed_difference(group: SeedGroup, first: SeedGroup) -> str:
    for one in (group, first):
        if len(one.counted) < FEWEST_SEEDS:
            return f"fewer than two seeds of {one.name} have a score after training that counts"
    last, other = group.counted[0], first.counted[0]
    return _why_no_difference(last, other).removeprefix("none: ")


def _asked(run: RunFacts) -> list[tuple[str, str]]:
    """Return the held-out prompts and gold answers that a run has recorded."""
    sampled = next((one.samples for one in run.held_out if one.samples), ())
    return [(sample.prompt, sample.answer) for sample in sampled]
