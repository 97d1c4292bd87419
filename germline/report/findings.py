"""Findings: what the recorded numbers of a run mean, the same list in every view.

A rule looks at recorded rows alone. The live view, the log, the summary after training, the HTML
page, `--json` and Python show the findings of the same rules; no rule depends on another. A
sentence has the measured values, so a reader can judge it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.report import finding_rules as rules
from germline.report.finding_rules import WINDOW, Recorded, Values
from germline.report.text_format import number, percent
from germline.types import GermlineError

Level = Literal["warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the numbers of a run show.

    Attributes:
        code: name of the rule.
        level: `warning`: the run should be changed; `note`: a number should be read with care.
        values: the measured values.
    """

    code: str
    level: Level
    values: Values

    @property
    def sentence(self) -> str:
        """What was found and what helps, in words."""
        shown = {name: _shown(name, value) for name, value in self.values.items()}
        return RULES[self.code].sentence.format_map(shown)

    @property
    def docs(self) -> str:
        """Page and anchor of the documentation about this finding."""
        return f"docs/{RULES[self.code].docs}"

    def as_json(self) -> dict[str, Any]:
        """Return the finding as values for JSON."""
        return {
            "code": self.code,
            "level": self.level,
            "sentence": self.sentence,
            "values": dict(self.values),
            "docs": self.docs,
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: when it finds something, with which values, and what is said then."""

    level: Level
    when: Callable[[Recorded], Iterable[Values]]
    sentence: str
    needs: Literal["rows", "scores", "rollouts"] = "rows"
    docs: str = "tuning.md#when-a-run-does-not-learn"


def find(run: Recorded, *needs: str) -> list[Finding]:
    """Return the findings about a run, in the order of `RULES`.

    Args:
        run: what it has recorded.
        needs: only rules that need these; default: all.
    """
    return [
        Finding(code, rule.level, values)
        for code, rule in RULES.items()
        if not needs or rule.needs in needs
        for values in rule.when(run)
    ]


def findings(run: RunDirectory | Path | str) -> list[Finding]:
    """Return the findings about a run, training or not.

    Args:
        run: its directory.
    """
    return find(recorded(run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))))


def recorded(run: RunDirectory) -> Recorded:
    """Read what rules look at from a run directory."""
    scores = [row.score for row in run.held_out()]
    return Recorded(run.config, run.generations(), scores, run.rollouts(), is_fork=_is_fork(run))


def _is_fork(run: RunDirectory) -> bool:
    try:
        return bool(run.ancestors)
    except GermlineError:  # the run that it began from is not there
        return True


class LiveFindings:
    """The findings of a run that is training; scores are tested only when one is added."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        whole = recorded(run)
        self._latest = replace(whole, rows=whole.rows[-WINDOW:])
        self._of_scores = find(whole, "scores")

    def tell(self, row: Row) -> list[Finding]:
        """Return the warnings after a generation, whose row is this."""
        rows = [*self._latest.rows, row][-WINDOW:]
        self._latest = replace(self._latest, rows=rows)
        if row.get("held_out"):
            self._of_scores = find(recorded(self._run), "scores")
        found = self._of_scores + find(self._latest, "rows")
        return [one for one in found if one.level == "warning"]


def _shown(name: str, value: object) -> str:
    """Format a value for a sentence: shares in percent, numbers with three digits."""
    if name.endswith("share"):
        return "-" if value is None else percent(float(str(value)))
    return number(value) if isinstance(value, float) or value is None else str(value)


WORSE = "tuning.md#when-a-run-gets-worse"

RULES: Mapping[str, Rule] = {
    "decline": Rule(
        "warning",
        rules.decline,
        "The held-out {metric} has declined since update {since}: it went from {best} to {now} (95 "
        "% interval of the loss {low} to {high}, over the same {examples} examples). Keep the best "
        "weights (export --generation best), or continue from them with a lower learning rate "
        "(resume --from best).",
        "scores",
        docs=WORSE,
    ),
    "divergence": Rule(
        "warning",
        rules.divergence,
        "Since update {since} the held-out {metric} became worse ({best} to {now}, 95 % interval "
        "of the loss {low} to {high}) while the {risen} rose: the run may have learned what its "
        "reward likes, or overfits. Read the answers before and after.",
        "scores",
        docs=WORSE,
    ),
    "failed": Rule(
        "warning",
        rules.failed,
        "The grading of {share} of the completions of the latest generations failed, most often "
        "by: {reason}. Members whose grading fails do not differ.",
    ),
    "ties": Rule(
        "warning",
        rules.ties,
        "Little or no signal ({silent} generations in a row without an update): {who} differ on "
        "{examples_share} of the examples, and {pairs_share} of the antithetic pairs differ, at a "
        "mean fitness of {fitness}. Where the examples are solved, stop or take harder ones; where "
        "they are too hard, take easier ones or give partial credit; else {remedy}.",
    ),
    "agreement": Rule(
        "warning",
        rules.agreement,
        "The updates of the two halves of a batch hardly agree (cosine {agreement}), so an update "
        "is mostly noise: use learning_rate=auto, or a larger batch_size or {members}.",
    ),
    "empty": Rule(
        "warning",
        rules.empty,
        "{share} of the completions are empty: sigma or the learning rate is too large, or the "
        "reward favors an empty completion.",
    ),
    "walk": Rule(
        "warning",
        rules.walk,
        "The noise of the updates has moved the weights by {walk}, and a model with random noise "
        "of {edge} breaks: lower the learning rate.",
        docs=WORSE,
    ),
    "small_steps": Rule(
        "warning",
        rules.small_steps,
        "An update changes {share} of the served weights; the fp32 masters keep the rest, but a "
        "larger learning rate has an effect sooner.",
        docs="tuning.md#signals",
    ),
    "random_reward": Rule(
        "warning",
        rules.random_reward,
        "The reward is not deterministic: in generation {generation} members {members} gave the "
        "same answer to the same prompt and earned {rewards}. Such noise hides what members differ "
        "in: compute the reward from the completion and the row alone.",
        "rollouts",
    ),
    "truncated": Rule(
        "note",
        rules.truncated,
        "{share} of the completions of the last generation were cut at their longest length; raise "
        "task.max_new_tokens if answers are incomplete.",
        "rollouts",
    ),
    "solved": Rule(
        "note",
        rules.solved,
        "All {examples} held-out examples are right ({metric}), so little is left to learn there: "
        "take more or harder examples.",
        "scores",
    ),
    "not_learned": Rule(
        "note",
        rules.not_learned,
        "The held-out {metric} has not clearly improved: {before} before training, {after} now "
        "(difference {difference}, 95 % interval {interval}). More held-out examples or "
        "generations decide it.",
        "scores",
    ),
    "random_start": Rule(
        "note",
        rules.random_start,
        "The score before training of a run with space=lora is that of the base model with a "
        "random adapter, which depends on the run seed; with space.init_scale_b=0 it is that of "
        "the base model.",
        "scores",
        docs="methods.md#spaces",
    ),
}
"""Code -> rule, the most serious first."""
