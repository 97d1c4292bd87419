"""Prompts in the format of PKU-SafeRLHF, scored by a reward model and a cost model.

A row has `prompt`, and of each of two answers whether it is safe (`is_response_0_safe`) and which
categories of harm it has (`response_0_harm_category`: category -> true or false). Only the prompt
is used: a prompt that occurs in several rows is one example. The answers name its stratum, the
first category of harm that one of them has, or else how many of them are safe. The train/test split
has each stratum in its proportion, and both splits are ordered so that their beginnings have it
too: `task.train_examples=250` trains on a stratified sample.

Labels say which stratum a prompt belongs to, so a wrong one would distort the split and the sample
without a trace. Rows of prompts alone are valid: all of them are in one stratum. Where one row of a
file has a label, every row needs it, and both responses with their safety.

The task has no reward of its own. `task.scorers` has a reward model and a cost model, and
`germline.methods.lagrange_multiplier` adapts the weight of the cost.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from germline.config.row_tasks import SafeAlignment
from germline.protocols import Grader
from germline.tasks.dataset_library import load_rows
from germline.tasks.row_examples import Row, RowFormat, rows_to_examples
from germline.tasks.row_files import PlacedRow
from germline.tasks.splits import SplitTask, stratified_order, stratified_split
from germline.tasks.task_settings import heaviest_part
from germline.types import Example, GermlineError

log = logging.getLogger(__name__)

MAX_NEW_TOKENS = 128

RESPONSES = ("response_0", "response_1")
SAFE = ("is_response_0_safe", "is_response_1_safe")
CATEGORIES = ("response_0_harm_category", "response_1_harm_category")
CHOICES = ("better_response_id", "safer_response_id")
LABELS = (*RESPONSES, *SAFE, *CATEGORIES, *CHOICES)


class SafeAlignmentTask(SplitTask):
    """Prompts whose answers are scored for help and for harm; see the module."""

    def __init__(self, config: SafeAlignment) -> None:
        self.name = config.title
        rewards = {name: one.weight for name, one in config.scorers.items() if name != config.cost}
        self.rubric: Mapping[str, float] = {}
        self.floor: Mapping[str, float] = {}
        self.metric: str = config.metric or heaviest_part({**rewards, **config.reward_functions})
        weight = config.scorers[self.metric].weight if self.metric in config.scorers else 1.0
        self.metric_higher_is_better = weight >= 0
        self.grader: Grader = no_rewards
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        self._examples, self.digest = rows_to_examples(
            load_rows(config),
            RowFormat.of(config),
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
    train: list[Row], test: list[Row] | None, config: SafeAlignment
) -> tuple[list[Row], list[Row]]:
    """Return both splits, each prompt once and in an order with every stratum in proportion."""
    rows = _distinct(train)
    if test is None:
        sides = stratified_split(rows, _strata(rows), config.split_seed, config.place)
    else:
        sides = rows, _distinct(test)
    seen, held_out = (stratified_order(one, _strata(one), config.split_seed) for one in sides)
    return seen, held_out


def _distinct(rows: list[Row]) -> list[Row]:
    """Return the first row of each prompt; the labels of all rows are valid."""
    check_labels([(row.place, row.fields) for row in rows])
    return list({row.asked[:2]: row for row in reversed(rows)}.values())[::-1]


def _strata(rows: Sequence[Row]) -> list[str]:
    return [stratum(row.fields) for row in rows]


def check_labels(rows: Sequence[PlacedRow]) -> None:
    """Refuse rows whose labels are missing, of another type, or contradict each other."""
    present = {name for _, row in rows for name in LABELS if name in row}
    if not present:
        return
    needed = [name for name in LABELS if name in {*present, *RESPONSES, *SAFE}]
    equal = []
    for place, row in rows:
        for name in needed:
            _check_label(row, name, place)
        if row[RESPONSES[0]] == row[RESPONSES[1]]:
            _check_equal(row, place)
            equal.append(place)
    if equal:
        log.warning(
            "task.path: %d of %d rows have two equal responses, so they compare nothing; the first "
            "is %s. Their prompts are used all the same",
            *(len(equal), len(rows), equal[0]),
        )


def _check_label(row: Mapping[str, Any], name: str, place: str) -> None:
    if name not in row:
        found = ", ".join(f"`{one}`" for one in row)
        raise GermlineError(
            f"{place}: the label `{name}` is missing, which PKU-SafeRLHF has in every row; columns "
            f"found: {found}. Add it, map a column to it (task.columns), or drop all labels of all "
            "rows"
        )
    value = row[name]
    if name in RESPONSES:
        valid, must = isinstance(value, str), "text"
    elif name in SAFE:
        valid, must = isinstance(value, bool), "true or false"
    elif name in CHOICES:
        valid, must = type(value) is int and value in (0, 1), "0 or 1"
    else:
        # `datasets` fills a category that only other rows have with null.
        valid = isinstance(value, Mapping) and all(
            one is None or isinstance(one, bool) for one in value.values()
        )
        must = "an object of categories, each of them true or false"
    if not valid:
        raise GermlineError(
            f"{place}: `{name}` must be {must}, found {repr(value)[:200]} "
            f"({type(value).__name__}): correct the row, or remove it"
        )


def _check_equal(row: Mapping[str, Any], place: str) -> None:
    for one, two in (SAFE, CATEGORIES):
        if row.get(one) != row.get(two):
            raise GermlineError(
                f"{place}: `{RESPONSES[0]}` and `{RESPONSES[1]}` are the same text, "
                f"{repr(row[RESPONSES[0]])[:100]}, and their labels differ: `{one}` is "
                f"{repr(row.get(one))[:100]}, `{two}` is {repr(row.get(two))[:100]}. Correct the "
                "row, or remove it"
            )
