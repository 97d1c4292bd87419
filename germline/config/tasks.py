"""Settings of tasks: examples, rewards, and how completions are sampled."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from germline.config.base import KindOf, KindSection, Many, NameOf
from germline.config.config_files import kind_of_file
from germline.config.kl_penalty import KlPenalty
from germline.config.scorers import Scorers
from germline.registry import register


class TaskBase(KlPenalty, KindSection):
    """Settings every task has."""

    @property
    def title(self) -> str:
        """Name of the task: its kind, or the name of its file."""
        return self.kind

    @property
    def place(self) -> str:
        """Where the rows come from, in the words of errors."""
        return "data"

    @property
    def smoke_overrides(self) -> tuple[str, ...]:
        """Settings of the task in a run of `--smoke`."""
        return ()

    @property
    def sends_chats(self) -> bool:
        """Whether prompts go through the chat template; a Python file may decide otherwise."""
        return self.chat is not False

    chat: bool | None = None
    """Wrap prompts in the model's chat template; default: as the task wants."""
    max_new_tokens: int | None = Field(None, ge=1)
    """Longest completion, in tokens; default: the task's."""
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...] | None, Many] = None
    """Strings that end a completion; default: the task's."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature while training; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus probability mass; 1 keeps every token."""
    system_prompt: str | None = Field(None, min_length=1)
    """System message before every prompt; needs a chat template with that role."""
    few_shot: int = Field(0, ge=0)
    """Number of solved training examples before every prompt, the same ones in every run; an
    example is never shown in its own prompt."""
    train_examples: int | None = Field(None, ge=1)
    """Train on the first so many training examples; default: all."""
    strip_thinking: bool = False
    """Remove what a completion writes in `thinking_tag` before it is graded; a block that is
    not closed is removed to the end."""
    thinking_tag: str = Field("think", pattern=r"^\w+$")
    """Name of the tag, such as `think` for `<think>` and `</think>`."""
    reward_functions: dict[str, float] = Field({})
    """Names and weights of reward functions given from Python, `germline.train(config,
    reward=...)`, which writes this setting; they replace the rewards of the task."""
    reward_floor: float | dict[str, float] = 0.0
    """Worst value of the functions given from Python: one number, or one per function; a
    completion that cannot be graded earns it."""
    scorers: Scorers = Field({})
    """Reward models, judges and reward services by name, such as `{helpful: {kind: openrlhf,
    url: ...}}`; each adds its weighted score to the rewards of the task."""


@register("task", "germline.tasks.conciseness:ConcisenessTask")
class Conciseness(TaskBase):
    """Answer with as few characters as the gold answer: reward = -|length difference|."""

    kind: Literal["conciseness"] = "conciseness"
    data: Literal["facts", "paper"] = "facts"
    """`facts`: questions the nano model knows; `paper`: the 2 + 8 pairs of Qiu et al."""
    path: Path | None = None
    """JSONL of {question, answer} instead of `data`."""
    test_path: Path | None = None
    """JSONL of held-out pairs; default: a seeded 80/20 split of `path`."""
    split_seed: int = 0
    """Seed of the train/test split."""


@register("task", "germline.tasks.arithmetic:ArithmeticTask")
class Arithmetic(TaskBase):
    """Answer a short sum, difference or product with the bare number: reward 1 if exact."""

    kind: Literal["arithmetic"] = "arithmetic"
    split_seed: int = 0
    """Seed of the train/test split of operand pairs."""


@register("task", "germline.tasks.countdown:CountdownTask")
class Countdown(TaskBase):
    """Reach a target from given numbers: reward = 0.1 x format + answer."""

    @property
    def sends_chats(self) -> bool:
        """Whether prompts go through the chat template: by default they are sent as they are."""
        return self.chat is True

    kind: Literal["countdown"] = "countdown"
    path: Path | None = None
    """JSON list of {context, numbers, target, solution}; default: generated rows, see `puzzles`."""
    puzzles: Literal["small", "field"] = "small"
    """Generated rows: `small`, 3 numbers up to 9, which the nano model can solve; `field`, 3 or
    4 numbers up to 99, as in the papers."""
    split: Literal["field", "seeded"] = "field"
    """`field`: first 200 rows train, last 2000 test (generated rows likewise); `seeded`: a
    seeded 80/20 split."""
    split_seed: int = 0
    """Seed of the generated rows and of the seeded split."""


@register("task", "germline.tasks.multiplication:MultiplicationTask")
class Multiplication(TaskBase):
    """Multiply two numbers of so many digits and answer with the bare number: 1 if exact."""

    kind: Literal["multiplication"] = "multiplication"
    digits: int = Field(3, ge=1, le=6)
    """Digits of each factor."""
    split_seed: int = 0
    """Seed of the factors drawn and of the train/test split of factor pairs."""


def _as_written(template: object) -> object:
    """Undo YAML, which reads a bare `{question}` as a mapping from `question` to nothing."""
    if isinstance(template, Mapping) and list(template.values()) == [None]:
        return f"{{{next(iter(template))}}}"
    return template


class FileTask(TaskBase):
    """Settings of tasks made of a file."""

    path: Path
    """The file the task is made of."""

    @property
    def title(self) -> str:
        """What the task is called: the name of its file."""
        return self.path.stem

    @property
    def place(self) -> str:
        """Where the rows come from, in the words of errors."""
        return str(self.path)


class CustomTask(TaskBase):
    """Settings of tasks made of rows of your own."""

    columns: dict[str, str] = Field({})
    """Field of a row -> column of the data that holds it, such as `{prompt: question, answer:
    solution}`."""
    template: Annotated[str | None, BeforeValidator(_as_written)] = None
    """Prompt with `{field}` where a field of the row goes; default: the row's `prompt`, or its
    `question`."""
    split_seed: int = 0
    """Seed of the 80/20 train/test split where no held-out rows are given."""
    sample_weight: str | None = Field(None, min_length=1)
    """Field of a row with a number that its rewards are multiplied by."""
    digest: str | None = None
    """SHA-256 of code and examples, written when a run begins: a file that has changed since is
    refused."""

    @field_validator("template")
    @classmethod
    def _names_a_field(cls, template: str | None) -> str | None:
        if template is not None and not PLACEHOLDER.search(template):
            raise ValueError(
                "names no field, so every prompt would be the same: write {question} where the "
                "row's field `question` goes"
            )
        return template


PLACEHOLDER = re.compile(r"(?<!\{)\{(\w+(?:\.[A-Za-z_]\w*)*)\}(?!\})")
"""A field in a template; `{{word}}` is the text `{word}`, and other braces are literal."""


@register("task", "germline.tasks.python_file:PythonTask")
class PythonFile(CustomTask, FileTask):
    """A Python file with examples and `reward(completion, example)`; see docs/own-task.md."""

    kind: Literal["python"] = "python"


RewardName = Annotated[str, NameOf("reward")]


def _weighted(value: object) -> object:
    """Read `exact` as `{exact: 1}`."""
    return {value: 1.0} if isinstance(value, str) else value


class RewardedRows(CustomTask):
    """Settings of rows that are scored by built-in rewards."""

    answer: str = Field("answer", min_length=1)
    """Field of a row with the gold answer, or a list of them, any of which is right; `a.b` is
    the field `b` of the field `a`."""
    reward: Annotated[dict[RewardName, float], BeforeValidator(_weighted)] = Field({"exact": 1.0})
    """Reward of a completion: `exact`, `contains`, `numeric`, `regex`, `json` or `length`, or
    several with weights such as `{exact: 1, length: 0.01}`; a reward of weight 0 is only
    reported. `{}` leaves the reward to `scorers`."""
    metric: str | None = None
    """The reward or scorer that held-out scores report; default: the reward of largest weight."""
    pattern: str | None = None
    """Pattern of `regex`, in Python syntax; default: the row's answer."""
    tolerance: float = Field(1e-6, ge=0)
    """Largest difference of `numeric` between completion and answer."""

    @field_validator("pattern")
    @classmethod
    def _is_a_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _something_is_rewarded_and_nothing_ignored(self) -> "RewardedRows":
        scorers = {name: scorer.weight for name, scorer in self.scorers.items()}
        if not any((*self.reward.values(), *scorers.values())):
            raise ValueError(f"reward={self.reward} has no weight above 0: give one of them one")
        if self.metric is not None and self.metric not in {**self.reward, **scorers}:
            raise ValueError(
                f"metric={self.metric} is not part of reward={self.reward}"
                f"{f' or scorers={scorers}' if scorers else ''}: add it with weight 0, or report "
                "one that is"
            )
        return self


@register("task", "germline.tasks.rows:JsonlTask")
class Jsonl(RewardedRows, FileTask):
    """A JSONL file scored by built-in rewards, no Python needed; see docs/own-task.md."""

    kind: Literal["jsonl"] = "jsonl"
    test_path: Path | None = None
    """JSONL of held-out rows; default: a seeded 80/20 split of `path`."""


class DatasetSource(FileTask):
    """Settings of rows that the library `datasets` loads."""

    path: Path
    """Name on the Hugging Face hub, a folder, or a file (.parquet, .csv, .json, .arrow)."""
    subset: str | None = None
    """Configuration of the dataset, such as `main`."""
    revision: str | None = None
    """Branch, tag or commit on the hub; default: the newest."""
    split: str = Field("train", min_length=1)
    """Split to train on, slices such as `train[:500]` too."""
    test_split: str | None = None
    """Split with the held-out rows; default: a seeded 80/20 split of `split`."""

    @property
    def held_out_split(self) -> str | None:
        """The split with the held-out rows; None where they are of `split` or of another file."""
        return self.test_split


class FileOrDataset(CustomTask, DatasetSource):
    """Settings of tasks whose rows are a file of yours or a dataset."""

    test_path: Path | None = None
    """File of held-out rows, where `path` is a file; default: a seeded 80/20 split of it."""

    @property
    def title(self) -> str:
        """Name of the task: its kind."""
        return self.kind

    @property
    def held_out_split(self) -> str | None:
        """As for any dataset; where the path is a file, only a split that was named for it."""
        of_hub = not self.path.expanduser().is_file()
        return self.test_split if of_hub or self.changed("test_split") else None


@register("task", "germline.tasks.rows:DatasetTask")
class Dataset(RewardedRows, DatasetSource):
    """A dataset that the library `datasets` loads, scored by built-in rewards."""

    kind: Literal["dataset"] = "dataset"


@register("task", "germline.tasks.rows:GivenRowsTask")
class Rows(RewardedRows):
    """Rows given from Python: a list, a `Dataset` or a `DataFrame`; see docs/from-python.md."""

    kind: Literal["rows"] = "rows"


def _from_file(value: object) -> object:
    """Accept a file as the whole section, `task: my_task.py`, or as its kind."""
    section = value if isinstance(value, Mapping) else {"kind": value}
    path = Path(str(section.get("path")))
    if "kind" not in section and path.suffix == ".py":
        return {**section, "kind": kind_of_file(path)}  # no other kind reads such a file
    kind = kind_of_file(Path(str(section.get("kind"))))
    return value if kind is None else {"path": section["kind"], **section, "kind": kind}


TaskConfig = Annotated[TaskBase, KindOf("task", default="conciseness"), BeforeValidator(_from_file)]
