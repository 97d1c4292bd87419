"""Tasks made of rows, scored by built-in rewards: a file, a dataset, or rows from Python.

`task.reward` names the rewards and their weights (`germline.graders.builtin_rewards`),
`task.template` the prompt. Held-out rows come from `task.test_path` (of a dataset:
`task.test_split`) or from a seeded 80/20 split. Where reward functions are given from Python,
their `example` is the row, and the rows need no gold answer.

A row of `safe_alignment` has a prompt in the format of PKU-SafeRLHF, of whose answers nothing is
used: a prompt that occurs in several rows is one example. The task has no reward of its own:
`task.scorers` has a reward model and a cost model, whose weight
`germline.methods.lagrange_multiplier` adapts.
"""

from collections.abc import Mapping
from typing import cast

from germline.config.row_tasks import FileTask, RewardedRows, SafeAlignment
from germline.errors import shown
from germline.graders.builtin_rewards import (
    OTHER_ANSWERS,
    make_rubric,
    normalize_answer,
    normalized_number,
    rewards,
)
from germline.tasks.row_examples import Row, as_text, gold_answers, rows_to_examples, shown_answer
from germline.tasks.row_files import GivenRows, field_value, fields_found, load_rows
from germline.tasks.splits import SplitTask, heaviest_part
from germline.types import Example, GermlineError

MAX_NEW_TOKENS = 128


class RowsTask(SplitTask):
    """Rows with a prompt and a gold answer, scored by built-in rewards; see the module."""

    def __init__(self, config: RewardedRows, rows: GivenRows | None = None) -> None:
        if rows is None:
            rows = load_rows(cast(FileTask, config))
        given = {str(name): weight for name, weight in config.reward.items()}
        known = rewards()
        # In the order of registration, which does not depend on the config file or run.json.
        weights = {name: given[name] for name in known if name in given}
        scored = {name: scorer.weight for name, scorer in config.scorers.items()}
        metric: str = config.metric or heaviest_part(weights or scored)
        self._config, self._settings = config, config.model_dump()
        self._rewards = [known[name] for name in weights]
        super().__init__(
            config,
            make_rubric(tuple(weights), **self._settings),
            weights,
            {name: known[name].floor(weight) for name, weight in weights.items()},
            metric=metric,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        self.metric_higher_is_better = {**weights, **scored}[metric] >= 0
        self._examples, self.digest = rows_to_examples(rows, config, self._gold)

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the last number of a completion for `numeric`, else its normalized text."""
        return normalized_number(text) if "numeric" in self.rubric else normalize_answer(text)

    def _gold(self, row: Row) -> tuple[str, Mapping[str, object]]:
        """Return the gold answer and the facts of an example, as the rewards need them."""
        config = self._config
        if config.reward_functions:
            return shown_answer(row, config.answer), row.fields
        answers = self._answers(row)
        for answer in answers:
            self._check(answer, row)
        if not answers:
            return "", {}
        first, *others = answers
        facts: dict[str, object] = {OTHER_ANSWERS: tuple(others)} if others else {}
        if "regex" in config.reward and config.pattern is None:
            facts["pattern"] = first
            if len(config.reward) == 1:  # a pattern is no answer that a model could write
                first = ""
        return first, facts

    def _answers(self, row: Row) -> tuple[str, ...]:
        config, field = self._config, self._config.answer
        value = field_value(row.fields, field)
        if "json" in config.reward and value is not None:
            return (as_text(value, field, row.place).strip(),)
        answers = gold_answers(row, field)
        optional = {"json", "regex"} if config.pattern is not None else {"json"}
        if not answers and not optional.issuperset(config.reward):
            raise GermlineError(
                f"{row.place}: the field `{field}` is missing; {fields_found(row.fields)}. Name "
                "the field of the gold answer, as in task.answer=NAME"
            )
        return answers

    def _check(self, answer: str, row: Row) -> None:
        for reward in self._rewards:
            complaint = reward.check_answer(answer, **reward.chosen(self._settings))
            if complaint:
                raise GermlineError(
                    f"{row.place}: the field `{self._config.answer}` {complaint}, found "
                    f"{shown(answer)}"
                )


class SafeAlignmentTask(SplitTask):
    """Prompts whose answers are scored for help and for harm; see the module."""

    def __init__(self, config: SafeAlignment) -> None:
        rewards = {name: one.weight for name, one in config.scorers.items() if name != config.cost}
        metric = config.metric or heaviest_part({**rewards, **config.reward_functions})
        super().__init__(
            *(config, make_rubric(()), {}, {}),  # all parts are those of scorers
            metric=metric,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        if metric in config.scorers:
            self.metric_higher_is_better = config.scorers[metric].weight >= 0
        self._examples, self.digest = rows_to_examples(
            load_rows(config),
            config,
            lambda row: ("", row.fields if config.reward_functions else {}),
            code=b"seeded split",  # earlier runs had a stratified one
            distinct=True,
        )
