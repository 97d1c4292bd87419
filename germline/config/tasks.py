"""Settings of tasks: what is played, and how completions are chosen."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from germline.config.sections import Many, Section, named


class TaskBase(Section):
    """Settings every task has."""

    chat: bool | None = Field(
        None, description="Wrap prompts in the model's chat template; default: as the task wants."
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="Longest completion, in tokens; default: the task's."
    )
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...] | None, Many] = Field(
        None, description="Strings that end a completion; default: the task's."
    )
    temperature: float = Field(
        0.0, ge=0, description="Sampling temperature while training; 0 is greedy."
    )
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus probability mass; 1 keeps every token."
    )


class Conciseness(TaskBase):
    """Answer with as few characters as the gold answer: reward = -|length difference|."""

    kind: Literal["conciseness"] = "conciseness"
    data: Literal["facts", "paper"] = Field(
        "facts",
        description=(
            "`facts`: questions the nano model knows; `paper`: the 2 + 8 pairs of Qiu et al."
        ),
    )
    path: Path | None = Field(None, description="JSONL of {question, answer} instead of `data`.")
    test_path: Path | None = Field(
        None, description="JSONL of held-out pairs; default: a seeded 80/20 split of `path`."
    )
    split_seed: int = Field(0, description="Seed of the train/test split.")

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> "Conciseness":
        if self.path and self.data != "facts":
            raise ValueError(f"data={self.data} and path={self.path} exclude each other: drop one")
        if self.split_seed and (self.data == "paper" or self.test_path):
            raise ValueError(
                f"split_seed={self.split_seed} has nothing to split: "
                "the held-out examples are given by data=paper or test_path"
            )
        return self


class Arithmetic(TaskBase):
    """Answer a short sum, difference or product with the bare number: reward 1 if exact."""

    kind: Literal["arithmetic"] = "arithmetic"
    split_seed: int = Field(0, description="Seed of the train/test split of operand pairs.")


class Countdown(TaskBase):
    """Reach a target from given numbers: reward = 0.1 x format + answer."""

    kind: Literal["countdown"] = "countdown"
    path: Path | None = Field(
        None,
        description=(
            "JSON list of {context, numbers, target, solution}; default: generated rows of 3 "
            "small numbers."
        ),
    )
    split: Literal["field", "seeded"] = Field(
        "field",
        description=(
            "`field`: first 200 rows train, last 2000 test (generated rows likewise); "
            "`seeded`: a seeded 80/20 split."
        ),
    )
    split_seed: int = Field(0, description="Seed of the generated rows and of the seeded split.")


TaskConfig = Annotated[
    Annotated[Conciseness | Arithmetic | Countdown, Field(discriminator="kind")],
    named("conciseness"),
]
