"""Settings of the mathematics tasks: GSM8K, and problems with boxed answers such as MATH."""

from pathlib import Path
from typing import Literal

from germline.config.tasks import FileOrDataset
from germline.registry import register

SAMPLES = Path(__file__).parents[1] / "tasks"
"""The folder of a few problems of our own, which `--smoke` uses instead of a download."""


class MathProblems(FileOrDataset):
    """Settings of mathematics problems."""

    reading: Literal["strict", "lenient"] = "strict"
    """The reading of the answer that is rewarded: `strict` only in the place that the prompt
    asks for, `lenient` anywhere; both are reported."""


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

    @property
    def smoke_overrides(self) -> tuple[str, ...]:
        """Settings of a run of `--smoke`: problems that come with germline."""
        return (
            f"task.path={SAMPLES / 'gsm8k_samples.jsonl'}",
            *("task.test_path=null", "task.split=train", "task.test_split=test"),
        )


@register("task", "germline.tasks.math_problems:MathTask")
class Math(MathProblems):
    r"""Mathematics problems with boxed answers (MATH): reward 1 if \boxed{...} is right."""

    kind: Literal["math"] = "math"
    path: Path
    """Name on the Hugging Face hub, a folder, or a file (.jsonl, .parquet, .csv)."""
    template: str | None = (
        "{problem}\n\nThink step by step, and write the final answer in \\boxed{}."
    )
    """Prompt with `{field}` where a field of the row goes."""
    levels: tuple[int, ...] = ()
    """Levels of difficulty to use, 1 to 5, of the field `level`; empty: all problems."""

    @property
    def smoke_overrides(self) -> tuple[str, ...]:
        """Settings of a run of `--smoke`: problems that come with germline."""
        return (
            f"task.path={SAMPLES / 'math_samples.jsonl'}",
            *("task.test_path=null", "task.split=train", "task.test_split=null"),
            "task.levels=[]",
        )
