"""Tasks made of rows, scored by built-in rewards: a JSONL file, a dataset, or rows from Python.

`task.reward` names the rewards and their weights (`germline.graders.builtin_rewards`),
`task.template` the prompt. Held-out rows come from `task.test_path` (of a dataset:
`task.test_split`) or from a seeded 80/20 split. Where reward functions are given from Python,
their `example` is the row, and the rows need no gold answer.
"""

from collections.abc import Mapping, Sequence

from germline.config import Dataset, Jsonl, Rows
from germline.config.tasks import RewardedRows
from germline.graders.answer_match import normalize_answer, normalized_number
from germline.graders.builtin_rewards import make_rubric, rewards
from germline.protocols import Grader
from germline.tasks import dataset_rows
from germline.tasks.dataset_library import load_dataset_rows
from germline.tasks.json_files import PlacedRow, read_json_lines, shown
from germline.tasks.python_inputs import GivenRows
from germline.tasks.scorer_parts import heaviest_part
from germline.types import Example, GermlineError, Split

MAX_NEW_TOKENS = 128


class RowsTask:
    """Rows with a prompt and a gold answer, scored by built-in rewards; see the module."""

    def __init__(
        self, config: RewardedRows, train: list[PlacedRow], test: list[PlacedRow] | None
    ) -> None:
        self.name = config.title
        given = {str(name): weight for name, weight in config.reward.items()}
        known = rewards()
        # In the order of registration, which does not depend on the config file or run.json.
        weights = {name: given[name] for name in known if name in given}
        self.rubric: Mapping[str, float] = weights
        self.floor: Mapping[str, float] = {
            name: known[name].floor(weight) for name, weight in weights.items()
        }
        scored = {name: scorer.weight for name, scorer in config.scorers.items()}
        self.metric: str = config.metric or heaviest_part(weights or scored)
        self.metric_higher_is_better = {**weights, **scored}[self.metric] >= 0
        self.grader: Grader = make_rubric(tuple(weights), **config.model_dump())
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        train = dataset_rows.with_columns(train, config.columns)
        test = None if test is None else dataset_rows.with_columns(test, config.columns)
        self.digest = dataset_rows.task_digest(b"", train, test)
        dataset_rows.check_unchanged(config, self.digest)
        sides = dataset_rows.split_rows(
            train, test, config.template, config.split_seed, config.place
        )
        rows = [*train, *(test or ())]
        _check_answers(rows, config)
        for place, row in rows:
            dataset_rows.sample_weight(row, config.sample_weight, place)
        self._examples: dict[Split, tuple[Example, ...]] = {
            split: _examples(items, config) for split, items in sides.items()
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the last number of a completion for `numeric`, else its normalized text."""
        return normalized_number(text) if "numeric" in self.rubric else normalize_answer(text)


class JsonlTask(RowsTask):
    """Rows of a JSONL file: one JSON object per line."""

    def __init__(self, config: Jsonl) -> None:
        test = None
        if config.test_path is not None:
            test = read_json_lines(config.test_path, "task.test_path")
        super().__init__(config, read_json_lines(config.path, "task.path"), test)


class DatasetTask(RowsTask):
    """Rows that the library `datasets` loads: from the hub, a folder, or a file."""

    def __init__(self, config: Dataset) -> None:
        test = None
        if config.test_split is not None:
            test = load_dataset_rows(config, config.test_split)
        super().__init__(config, load_dataset_rows(config, config.split), test)


class GivenRowsTask(RowsTask):
    """Rows given from Python."""

    def __init__(self, config: Rows, rows: GivenRows) -> None:
        super().__init__(config, rows.train, rows.test)


def _examples(items: Sequence[tuple[str, PlacedRow]], config: RewardedRows) -> tuple[Example, ...]:
    answers: list[str] = []
    facts: list[Mapping[str, object]] = []
    for _, (place, row) in items:
        if config.reward_functions:
            answers.append(_optional_answer(row, config, place))
            facts.append({**row, **dataset_rows.sample_weight(row, config.sample_weight, place)})
            continue
        gold = _answer(row, config, place)
        own_pattern = "regex" in config.reward and config.pattern is None
        # A pattern is not a gold answer that a model could write.
        only_pattern = own_pattern and len(config.reward) == 1
        answers.append("" if only_pattern else gold)
        weight = dataset_rows.sample_weight(row, config.sample_weight, place)
        facts.append({"pattern": gold, **weight} if own_pattern else weight)
    return dataset_rows.make_examples(
        items, answers, facts, chat=config.sends_chats, template=config.template
    )


def _optional_answer(row: Mapping[str, object], config: RewardedRows, place: str) -> str:
    """Return the gold answer of a row for checks and displays; "" if it has none."""
    if config.answer in row:
        return dataset_rows.row_answer(row, config.answer, place)
    return dataset_rows.last_answer(row, place) or ""


def _check_answers(rows: Sequence[PlacedRow], config: RewardedRows) -> None:
    """Check that every row has a gold answer, if a reward needs it.

    Raises:
        GermlineError: naming the first row without one, and how many there are.
    """
    optional = {"json"} | ({"regex"} if config.pattern is not None else set())
    if config.reward_functions or optional.issuperset(config.reward):
        return
    lacking = [(place, row) for place, row in rows if not _has_answer(row, config, place)]
    if lacking:
        place, row = lacking[0]
        found = ", ".join(f"`{name}`" for name in row)
        raise GermlineError(
            f"{place}: the field `{config.answer}` is missing (in {len(lacking)} of {len(rows)} "
            f"rows); fields found: {found}. Name the field that holds the gold answer, as in "
            "task.answer=NAME"
        )


def _has_answer(row: Mapping[str, object], config: RewardedRows, place: str) -> bool:
    return config.answer in row or dataset_rows.last_answer(row, place) is not None


def _answer(row: Mapping[str, object], config: RewardedRows, place: str) -> str:
    """Return the gold answer; "" if the row has none and no reward needs it."""
    if not _has_answer(row, config, place):
        return ""
    if config.answer not in row:
        row = {**row, config.answer: dataset_rows.last_answer(row, place)}
    gold = dataset_rows.row_answer(row, config.answer, place)
    known, settings = rewards(), config.model_dump()
    for name in config.reward:
        complaint = known[name].check_answer(gold, **known[name].chosen(settings))
        if complaint:
            raise GermlineError(
                f"{place}: the field `{config.answer}` {complaint}, found {shown(gold)}"
            )
    return gold
