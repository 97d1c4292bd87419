"""Prompts in the format of PKU-SafeRLHF, scored by a reward model and a cost model.

A row has `prompt`, and of each of two answers whether it is safe (`is_response_0_safe`) and which
categories of harm it has (`response_0_harm_category`: category -> true or false). Only the prompt
is used: a prompt that occurs in several rows is one example. The answers name its stratum, the
first category of harm that one of them has, or else how many of them are safe. The train/test split
has each stratum in its proportion, and both splits are ordered so that their beginnings have it
too: `task.train_examples=250` trains on a stratified sample.

The task has no reward of its own. `task.scorers` has a reward model and a cost model, and
`germline.strategies.lagrange_multiplier` adapts the weight of the cost.
"""

from collections.abc import Mapping, Sequence

from germline.config.safe_alignment import SafeAlignment
from germline.protocols import Grader
from germline.tasks import dataset_rows
from germline.tasks.file_or_dataset import load_file_or_dataset
from germline.tasks.json_files import PlacedRow
from germline.tasks.safe_rlhf_labels import CATEGORIES, SAFE, check_labels
from germline.tasks.scorer_parts import heaviest_part
from germline.tasks.splits import stratified_order, stratified_split
from germline.types import Example, Split

MAX_NEW_TOKENS = 128


class SafeAlignmentTask:
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
        train, test = load_file_or_dataset(config)
        self.digest = dataset_rows.task_digest(b"", train, test)
        dataset_rows.check_unchanged(config, self.digest)
        prompts = _prompts(train, config)
        if test is None:
            seen, held_out = stratified_split(
                prompts, _strata(prompts), config.split_seed, config.place
            )
        else:
            seen, held_out = prompts, _prompts(test, config)
        self._examples: dict[Split, tuple[Example, ...]] = {
            "train": _examples(seen, config),
            "test": _examples(held_out, config),
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]


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


def _prompts(rows: Sequence[PlacedRow], config: SafeAlignment) -> list[tuple[str, PlacedRow]]:
    """Return each prompt once, with the first of its rows; the labels of all rows are valid."""
    found: dict[str, PlacedRow] = {}
    for place, row in rows:
        found.setdefault(dataset_rows.row_prompt(row, place, config.template), (place, row))
    check_labels(rows)
    return list(found.items())


def _strata(prompts: Sequence[tuple[str, PlacedRow]]) -> list[str]:
    return [stratum(row) for _, (_, row) in prompts]


def _examples(
    prompts: Sequence[tuple[str, PlacedRow]], config: SafeAlignment
) -> tuple[Example, ...]:
    items = stratified_order(prompts, _strata(prompts), config.split_seed)
    facts = [
        {
            **(row if config.reward_functions else {}),
            **dataset_rows.sample_weight(row, config.sample_weight, place),
        }
        for _, (place, row) in items
    ]
    return dataset_rows.make_examples(
        items, [""] * len(items), facts, chat=config.sends_chats, template=config.template
    )
