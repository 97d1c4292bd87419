"""Settings of tasks of rows: your own, those of datasets, and environments from a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from germline import registry
from germline.config.base import Many
from germline.config.scorers import ScorerConfig
from germline.config.tasks import EpisodeSettings, TaskBase
from germline.registry import register

PLACEHOLDER = re.compile(r"(?<!\{)\{(\w+(?:\.[A-Za-z_]\w*)*)\}(?!\})")
"""A field in a template; `{{word}}` is the text `{word}`, and other braces are literal."""


class FileTask(TaskBase):
    """Settings of tasks made of a file."""

    path: Path
    """The file the task is made of."""

    @property
    def title(self) -> str:
        """What the task is called: the name of its file."""
        return self.path.stem


def _as_written(template: object) -> object:
    """Undo YAML, which reads a bare `{question}` as a mapping from `question` to nothing."""
    if isinstance(template, Mapping) and list(template.values()) == [None]:
        return f"{{{next(iter(template))}}}"
    return template


class CustomTask(TaskBase):
    """Settings of tasks made of rows of your own."""

    columns: dict[str, str] = Field({})
    """Field of a row -> column that holds it, such as `{prompt: question, answer: solution}`."""
    template: Annotated[str | None, BeforeValidator(_as_written)] = None
    """Prompt with `{field}` for fields of the row; default: its `prompt`, or its `question`."""
    split_seed: int = 0
    """Seed of the 80/20 train/test split where no held-out rows are given."""
    digest: str | None = None
    """SHA-256 of code and examples when the run began; a file that has changed is refused."""

    @property
    def place(self) -> str:
        """Where the rows come from, in the words of errors."""
        return str(getattr(self, "path", "data"))

    @field_validator("template")
    @classmethod
    def _names_a_field(cls, template: str | None) -> str | None:
        if template is not None and not PLACEHOLDER.search(template):
            raise ValueError("names no field such as {question}: every prompt would be the same")
        return template


@register("task", "germline.tasks.python_file:PythonTask")
class PythonFile(CustomTask, FileTask):
    """A Python file with examples and `reward(completion, example)`; see docs/own-task.md."""

    kind: Literal["python"] = "python"


@register("task", "germline.tasks.environment_task:FileEnvironmentTask")
class Environment(CustomTask, FileTask, EpisodeSettings):
    """A Python file with an environment class and its rows; see docs/environments.md."""

    kind: Literal["environment"] = "environment"


@register("task", "germline.tasks.verifiers_task:VerifiersTask")
class Verifiers(EpisodeSettings):
    """An environment of the library verifiers (v1); see docs/environments.md."""

    kind: Literal["verifiers"] = "verifiers"
    env: str = Field(min_length=1)
    """Installed taskset: `owner/name` of the hub, the name of a module, or a Python file."""
    args: dict[str, Any] = Field({})
    """Settings of the taskset, as its own configuration names them."""
    tasks: int | None = Field(None, ge=2)
    """Number of first tasks that are read; default: all. A taskset without an end needs it."""
    metrics: Annotated[tuple[str, ...], Many] = ()
    """Further rewards and metrics to record, which `@vf.reward` and `@vf.metric` do not declare."""
    floor: float = 0.0
    """Worst reward of an episode; what the model makes fail earns it."""
    split_seed: int = 0
    """Seed of the 80/20 train/test split of the tasks."""

    @property
    def title(self) -> str:
        """What the task is called: the name of the taskset."""
        return Path(self.env.partition("@")[0]).stem


def _are_rewards(weights: dict[str, float]) -> dict[str, float]:
    for name in weights:
        if name not in registry.entries("reward"):
            raise ValueError(registry.unknown_kind("reward", name))
    return weights


Rewards = Annotated[
    dict[str, float],
    BeforeValidator(lambda value: {value: 1.0} if isinstance(value, str) else value),
    AfterValidator(_are_rewards),
]
"""Weights by name; `exact` is `{exact: 1}`."""


class RewardedRows(CustomTask):
    """Settings of rows that are scored by built-in rewards."""

    answer: str = Field("answer", min_length=1)
    """Field of a row with the gold answer, or a list of right ones; `a.b`: the field `b` of `a`."""
    reward: Rewards = Field({"exact": 1.0})
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
    def _something_is_rewarded(self) -> "RewardedRows":
        parts = {**self.reward, **{name: one.weight for name, one in self.scorers.items()}}
        if not any(parts.values()):
            raise ValueError(f"reward={self.reward} has no weight above 0: give one of them one")
        if self.metric is not None and self.metric not in parts:
            raise ValueError(
                f"metric={self.metric} is not one of {', '.join(parts)}: add it with weight 0"
            )
        return self


for _name in ("exact", "contains", "numeric", "regex", "json", "length"):
    register("reward", f"germline.graders.builtin_rewards:{_name.upper()}", _name)(RewardedRows)


@register("task", "germline.tasks.rows:RowsTask")
class Jsonl(RewardedRows, FileTask):
    """A JSONL file scored by built-in rewards, no Python needed; see docs/own-task.md."""

    kind: Literal["jsonl"] = "jsonl"
    test_path: Path | None = None
    """JSONL of held-out rows; default: a seeded 80/20 split of `path`."""


class DatasetSource(FileTask):
    """Settings of rows that the library `datasets` loads."""

    path: Path
    """Name on the Hugging Face hub, folder, or file (.jsonl .parquet .csv .tsv .json .arrow)."""
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
        """The split with the held-out rows; a file has the one that was named, if any."""
        of_hub = not self.path.expanduser().is_file()
        return self.test_split if of_hub or self.changed("test_split") else None


class FileOrDataset(CustomTask, DatasetSource):
    """Settings of tasks whose rows are a file of yours or a dataset."""

    test_path: Path | None = None
    """File of held-out rows, where `path` is a file; default: a seeded 80/20 split of it."""

    @property
    def title(self) -> str:
        """Name of the task: its kind."""
        return self.kind


@register("task", "germline.tasks.rows:RowsTask")
class Dataset(RewardedRows, DatasetSource):
    """A dataset that the library `datasets` loads, scored by built-in rewards."""

    kind: Literal["dataset"] = "dataset"


@register("task", "germline.tasks.rows:RowsTask")
class Rows(RewardedRows):
    """Rows given from Python: a list, a `Dataset` or a `DataFrame`; see docs/from-python.md."""

    kind: Literal["rows"] = "rows"


class MathProblems(FileOrDataset):
    """Settings of mathematics problems."""

    reading: Literal["strict", "lenient"] = "strict"
    """Where the rewarded answer is read: `strict`, in the place that the prompt asks for;
    `lenient`, anywhere. Both are reported."""


@register("task", "germline.tasks.math_problems:Gsm8kTask")
class Gsm8k(MathProblems):
    """Grade-school word problems (GSM8K): reward 1 if the number after `####` is right."""

    kind: Literal["gsm8k"] = "gsm8k"
    path: Path = Path("openai/gsm8k")
    """Name on the Hugging Face hub, a folder, or a file (.jsonl, .parquet, .csv)."""
    subset: str | None = "main"
    """Configuration of the dataset on the hub."""
    test_split: str | None = "test"
    """Split with the held-out rows; `null`: a seeded 80/20 split of `split`."""
    template: str | None = (
        "{question}\n\nThink step by step. Write the final answer, a number, after ####."
    )
    """Prompt with `{field}` where a field of the row goes."""


@register("task", "germline.tasks.math_problems:MathTask")
class Math(MathProblems):
    r"""Mathematics problems with boxed answers (MATH): reward 1 if \boxed{...} is right."""

    kind: Literal["math"] = "math"
    template: str | None = (
        "{problem}\n\nThink step by step, and write the final answer in \\boxed{}."
    )
    """Prompt with `{field}` where a field of the row goes."""
    levels: tuple[int, ...] = ()
    """Levels of difficulty to use, 1 to 5, of the field `level`; empty: all problems."""


@register("task", "germline.tasks.rows:SafeAlignmentTask")
class SafeAlignment(FileOrDataset):
    """Prompts of PKU-SafeRLHF: a reward minus lambda times a cost, and lambda adapts."""

    kind: Literal["safe_alignment"] = "safe_alignment"
    path: Path = Path("PKU-Alignment/PKU-SafeRLHF")
    """Name on the Hugging Face hub, a folder, or a file (.jsonl, .parquet, .csv)."""
    test_split: str | None = "test"
    """Split with the held-out rows; `null`: a seeded 80/20 split of `split`."""
    scorers: dict[str, ScorerConfig]
    """Reward models and a cost model by name; the reward is the weighted sum of all but `cost`."""
    cost: str = Field("cost", min_length=1)
    """Name of the scorer whose score is the cost; its negative weight is -lambda at the start."""
    lambda_lr: float = Field(0.005, ge=0)
    """Growth of the logarithm of lambda per generation and unit of excess cost; 0 keeps lambda."""
    lambda_min: float = Field(1e-4, gt=0)
    """Smallest lambda."""
    lambda_max: float = Field(5.0, gt=0)
    """Largest lambda."""
    cost_limit: float = 0.0
    """Mean cost of the center above which lambda grows: excess = max(0, mean cost - this)."""
    cost_ema: float = Field(0.9, ge=0, lt=1)
    """Weight of earlier generations in the running mean of the excess."""
    safe_first: float | None = None
    """Cost above which a completion earns the lowest reward of its prompt in the generation;
    `null`: no completion does."""
    metric: str | None = None
    """The scorer that held-out scores report; default: the one of largest weight but `cost`."""

    @property
    def adapts(self) -> bool:
        """Whether rewards depend on more than the weights of the scorers."""
        return self.lambda_lr > 0 or self.safe_first is not None

    @model_validator(mode="after")
    def _a_scorer_is_the_cost(self) -> "SafeAlignment":
        found = ", ".join(self.scorers) or "none"
        scorer = self.scorers.get(self.cost)
        if scorer is None or scorer.weight >= 0 or getattr(scorer, "output", "cost") == "reward":
            raise ValueError(
                f"cost={self.cost} must name a scorer of a cost with a negative weight, found "
                f"scorers={found}"
            )
        if not self.lambda_min <= -scorer.weight <= self.lambda_max:
            raise ValueError(
                f"scorers.{self.cost}.weight={scorer.weight:g} makes lambda start outside "
                f"lambda_min={self.lambda_min:g} to lambda_max={self.lambda_max:g}"
            )
        weights = {name: one.weight for name, one in self.scorers.items()} | self.reward_functions
        if not any(weight for name, weight in weights.items() if name != self.cost):
            raise ValueError(f"scorers={found} has no reward with a weight beside the cost")
        if self.metric is not None and self.metric not in weights:
            raise ValueError(f"metric={self.metric} is not one of scorers={found}")
        return self
