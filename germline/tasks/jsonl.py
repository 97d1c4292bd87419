"""A task made of a JSONL file: one row per line, scored by built-in rewards, without Python code.

`task.reward` names the rewards and their weights (`germline.graders.builtin_rewards`),
`task.template` the prompt. Held-out rows come from `task.test_path` or from a seeded 80/20 split.
"""

from collections.abc import Mapping, Sequence

from germline.config import Jsonl
from germline.graders import numeric_match
from germline.graders.builtin_rewards import make_rubric, rewards
from germline.protocols import Grader
from germline.tasks import dataset_rows
from germline.tasks.json_files import PlacedRow, read_json_lines
from germline.tasks.normalize_answer import normalize_answer
from germline.types import Example, GermlineError, Split

MAX_NEW_TOKENS = 128


class JsonlTask:
    """Rows of a file, answered and scored; see the module."""

    def __init__(self, config: Jsonl) -> None:
        self.name = config.title
        given = {str(name): weight for name, weight in config.reward.items()}
        known = rewards()
        # In the order of registration, which does not depend on the config file or run.json.
        weights = {name: given[name] for name in known if name in given}
        self.rubric: Mapping[str, float] = weights
        self.floor: Mapping[str, float] = {
            name: known[name].floor(weight) for name, weight in weights.items()
        }
        heaviest = max(weights, key=lambda name: abs(weights[name]))
        self.metric: str = config.metric or heaviest
        self.metric_higher_is_better = weights[self.metric] >= 0
        self.grader: Grader = make_rubric(tuple(weights), **config.model_dump())
        self.max_new_tokens = config.max_new_tokens or MAX_NEW_TOKENS
        self.stop = config.stop or ()
        train = read_json_lines(config.path, "task.path")
        test = None
        if config.test_path is not None:
            test = read_json_lines(config.test_path, "task.test_path")
        self.digest = dataset_rows.task_digest(b"", train, test)
        dataset_rows.check_unchanged(config, self.digest)
        sides = dataset_rows.split_rows(
            train, test, config.template, config.split_seed, str(config.path)
        )
        self._examples: dict[Split, tuple[Example, ...]] = {
            split: _examples(items, config) for split, items in sides.items()
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the last number of a completion for `numeric`, else its normalized text."""
        return (
            numeric_match.normalized_number(text)
            if "numeric" in self.rubric
            else normalize_answer(text)
        )


def _examples(items: Sequence[tuple[str, PlacedRow]], config: Jsonl) -> tuple[Example, ...]:
    answers, facts = [], []
    for _, (place, row) in items:
        gold = _answer(row, config, place)
        own_pattern = "regex" in config.reward and config.pattern is None
        # A pattern is not a gold answer that a model could write.
        only_pattern = own_pattern and len(config.reward) == 1
        answers.append("" if only_pattern else gold)
        facts.append({"pattern": gold} if own_pattern else {})
    return dataset_rows.make_examples(items, answers, facts, chat=config.chat is not False)


def _answer(row: Mapping[str, object], config: Jsonl, place: str) -> str:
    """Return the gold answer; "" if the row has none and no reward needs it."""
    optional = {"json"} | ({"regex"} if config.pattern is not None else set())
    if config.answer not in row and optional.issuperset(config.reward):
        return ""
    gold = dataset_rows.row_answer(row, config.answer, place)
    known, settings = rewards(), config.model_dump()
    for name in config.reward:
        complaint = known[name].check_answer(gold, **known[name].chosen(settings))
        if complaint:
            raise GermlineError(f"{place}: the field `{config.answer}` {complaint}, found {gold!r}")
    return gold
