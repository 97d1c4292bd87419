"""Prompts in the format of PKU-SafeRLHF, scored by a reward model and a cost model.

A row has `prompt`, and of each of two answers whether it is safe (`is_response_0_safe`) and which
categories of harm it has (`response_0_harm_category`: category -> true or false). Only the prompt
is used: a prompt that occurs in several rows is one example. The answers name its stratum, the
first category of harm that one of them has, or else how many of them are safe. The train/test split
has each stratum in its proportion, and both splits are ordered so that their beginnings have it
too: `task.train_examples=250` trains on a stratified sample.

The task has no reward of its own. `task.scorers` has a reward model and a cost model, and
`germline.methods.lagrange_multiplier` adapts the weight of the cost.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from germline.config.row_tasks import SafeAlignment
from germline.errors import shown
from germline.tasks.row_examples import Row, rows_to_examples
from germline.tasks.row_files import load_rows
from germline.tasks.splits import SplitTask, heaviest_part, stratified_order, stratified_split
from germline.types import Example, GermlineError

MAX_NEW_TOKENS = 128

SAFE = ("is_response_0_safe", "is_response_1_safe")
CATEGORIES = ("response_0_harm_category", "response_1_harm_category")


class SafeAlignmentTask(SplitTask):
    """Prompts whose answers are scored for help and for harm; see the module."""

    def __init__(self, config: SafeAlignment) -> None:
        rewards = {name: one.weight for name, one in config.scorers.items() if name != config.cost}
        metric = config.metric or heaviest_part({**rewards, **config.reward_functions})
        super().__init__(
            *(config, no_rewards, {}, {}),
            metric=metric,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        if metric in config.scorers:
            self.metric_higher_is_better = config.scorers[metric].weight >= 0
        self._examples, self.digest = rows_to_examples(
            load_rows(config),
            config,
            lambda row: ("", row.fields if config.reward_functions else {}),
            arrange=partial(_arranged, config=config),
        )


def no_rewards(_text: str, _example: Example) -> Mapping[str, float]:
    """Return no rubric parts: all are those of scorers."""
    return {}


def stratum(row: Mapping[str, object]) -> str:
    """Return the first category of harm of the answers, or else how many answers are safe."""
    for name in CATEGORIES:
        categories = row.get(name)
        if isinstance(categories, Mapping):
            harm = next((str(name) for name, present in categories.items() if present), None)
            if harm is not None:
                return harm
    safe = sum(row.get(name) is True for name in SAFE)
    return f"{safe} safe"


def _arranged(
    train: list[Row], test: list[Row], config: SafeAlignment
) -> tuple[list[Row], list[Row]]:
    """Return both splits, each prompt once and in an order with every stratum in proportion."""

    def strata(rows: Sequence[Row]) -> list[str]:
        return [stratum(row.fields) for row in rows]

    rows = _distinct(train)
    if test:
        sides = rows, _distinct(test)
    else:
        sides = stratified_split(rows, strata(rows), config.split_seed, config.place)
    seen, held_out = (stratified_order(one, strata(one), config.split_seed) for one in sides)
    return seen, held_out


def _distinct(rows: list[Row]) -> list[Row]:
    """Return the first row of each prompt; a label of another type would change its stratum."""
    for row in rows:
        for name in SAFE:
            if not isinstance(found := row.fields.get(name), bool | None):
                raise GermlineError(
                    f"{row.place}: the label `{name}` must be true or false, found {shown(found)}: "
                    "correct it, or drop the labels of all rows"
                )
    return list({row.asked[:2]: row for row in reversed(rows)}.values())[::-1]
