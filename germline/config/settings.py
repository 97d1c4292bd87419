"""Every setting: its default, its unit and one line of meaning; frozen, unknown keys refused.

A section may be given as its short name alone: `space: full` means `space: {kind: full}`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of all sections: frozen, strict about names, finite about numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _section(default: str) -> BeforeValidator:
    """Let a section be its short name alone, or leave out `kind` where the default is meant."""

    def complete(value: object) -> object:
        if isinstance(value, str):
            return {"kind": value}
        return {"kind": default, **value} if isinstance(value, Mapping) else value

    return BeforeValidator(complete)


class Linear(Section):
    """A straight line over the run: `start` in generation 0, `end` in the last one."""

    kind: Literal["linear"] = "linear"
    start: float = Field(ge=0, description="Value in generation 0.")
    end: float = Field(ge=0, description="Value in the last generation.")


Scheduled = Annotated[float, Field(gt=0)] | Linear


_MANY = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Where several texts may stand, one may stand alone."""


class TaskBase(Section):
    """Settings every task has."""

    chat: bool | None = Field(
        None, description="Wrap prompts in the model's chat template; default: as the task wants."
    )
    max_new_tokens: int | None = Field(
        None, ge=1, description="Longest completion, in tokens; default: the task's."
    )
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...] | None, _MANY] = Field(
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
    _section("conciseness"),
]


def _one_layer(value: object) -> object:
    """YAML reads `layers: 3` as a number; people mean layer 3."""
    return str(value) if type(value) is int else value


class SpaceBase(Section):
    """Which tensors are searched."""

    include: Annotated[tuple[str, ...], _MANY] = Field(
        ("*",), description="Glob patterns of canonical tensor names to search."
    )
    exclude: Annotated[tuple[str, ...], _MANY] = Field(
        (), description="Glob patterns of tensor names to leave alone."
    )
    layers: Annotated[str | None, BeforeValidator(_one_layer)] = Field(
        None,
        description=(
            "Decoder layers to search, such as `0-9` or `0,3,20-23`; tensors outside layers "
            "are then left alone."
        ),
    )


class Full(SpaceBase):
    """Every weight, dense noise; tied tensors once."""

    kind: Literal["full"] = "full"


class LowRank(SpaceBase):
    """EGGROLL: noise A B^T / sqrt(rank) on the linear layers of the decoder blocks."""

    kind: Literal["low_rank"] = "low_rank"
    rank: int = Field(1, ge=1, description="Rank of a member's perturbation.")


SpaceConfig = Annotated[
    Annotated[Full | LowRank, Field(discriminator="kind")], _section("low_rank")
]


class Sgd(Section):
    """Plain ascent along the estimated gradient."""

    kind: Literal["sgd"] = "sgd"


class Adam(Section):
    """Adam; its moments cost 8 bytes per searched number."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the second moment.")


OptimizerConfig = Annotated[Annotated[Sgd | Adam, Field(discriminator="kind")], _section("sgd")]


class Nes(Section):
    """Natural evolution strategy with Gaussian noise, the field's default for language models."""

    kind: Literal["nes"] = "nes"
    population: int = Field(32, ge=2, description="Members per generation (N).")
    antithetic: bool = Field(default=True, description="Members come in pairs +noise and -noise.")
    sigma: Scheduled = Field(
        0.005, description="Standard deviation of the perturbation, in `sigma_unit`."
    )
    sigma_unit: Literal["constant", "mean_abs", "std"] = Field(
        "constant",
        description=(
            "Unit of sigma and learning rate per tensor: weight units, mean |W|, or std W of "
            "the starting weights."
        ),
    )
    learning_rate: Scheduled = Field(
        0.01,
        description=(
            "Multiplies sigma times the estimated gradient (Qiu et al.'s alpha), in `sigma_unit`."
        ),
    )
    optimizer: OptimizerConfig = Sgd()

    @model_validator(mode="after")
    def _members_differ_from_the_centre(self) -> "Nes":
        if isinstance(self.sigma, Linear) and min(self.sigma.start, self.sigma.end) == 0:
            raise ValueError(
                f"sigma from {self.sigma.start} to {self.sigma.end} reaches 0, where all members "
                "are the centre and nothing is learnt: end it above 0"
            )
        return self

    @model_validator(mode="after")
    def _pairs_are_even(self) -> "Nes":
        if self.antithetic and self.population % 2:
            raise ValueError(
                f"population={self.population} is odd but antithetic pairs need an even one: "
                f"use population={self.population + 1} or antithetic=false"
            )
        return self


StrategyConfig = Annotated[Nes, _section("nes")]


class Toy(Section):
    """A character model of a few thousand weights; milliseconds, for tests and bug reports."""

    kind: Literal["toy"] = "toy"


class InProcess(Section):
    """A Hugging Face causal language model in this process."""

    kind: Literal["inprocess"] = "inprocess"
    device: str = Field(
        "auto", description="`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a GPU when there is one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Serving dtype; `auto`: float32 on CPU, the checkpoint's on a GPU. Masters are "
            "always fp32."
        ),
    )
    centre: Literal["device", "host"] = Field(
        "device",
        description=(
            "Where the fp32 masters live: on the engine's device (fast) or on the host (least "
            "device memory)."
        ),
    )
    threads: int | None = Field(
        None,
        ge=1,
        description=(
            "CPU threads; default: PyTorch's choice. Part of what fixes the bits of an evaluation."
        ),
    )


EngineConfig = Annotated[
    Annotated[Toy | InProcess, Field(discriminator="kind")], _section("inprocess")
]


class Cell(Section):
    """Work is cut into cells of fixed size: the same batch shapes, whoever computes them."""

    members: int | None = Field(
        None, ge=1, description="Members per cell; default: as many as `rows` allows."
    )
    rows: int = Field(
        1024, ge=1, description="Rows per cell (members x examples) where `members` is left open."
    )
    examples: int = Field(256, ge=1, description="Examples per cell.")


class Local(Section):
    """One engine in this process."""

    kind: Literal["local"] = "local"


FleetConfig = Annotated[Local, _section("local")]


class Graders(Section):
    """Worker processes that grade completions."""

    workers: int = Field(1, ge=1, description="Grader processes.")
    timeout_s: float = Field(
        2.0,
        gt=0,
        description=(
            "Longest time for one completion, in seconds; beyond it the completion earns the "
            "task's floor."
        ),
    )


class HeldOut(Section):
    """Scores of the centre on examples it is not trained on."""

    every: int = Field(
        10,
        ge=1,
        description="Generations between held-out scores; the start and the end are always scored.",
    )
    examples: int = Field(100, ge=1, description="Held-out examples per score.")


class Recording(Section):
    """What a run directory keeps."""

    snapshot_every: int = Field(
        25, ge=1, description="Generations between snapshots of masters and optimizer moments."
    )
    keep_snapshots: int = Field(
        2,
        ge=1,
        description="Newest snapshots kept; older generations are replayed from the journal.",
    )
    rollouts: int = Field(
        8,
        ge=0,
        description=(
            "Rollouts written per generation (the best, the worst and a spread between); 0 "
            "writes none."
        ),
    )
    tensorboard: bool = Field(default=True, description="Write TensorBoard events.")
    figure_every: int = Field(10, ge=1, description="Generations between redraws of evolution.png.")


class Config(Section):
    """One training run."""

    model: str = Field("nano", description="`nano` (embedded), a folder, or a Hugging Face id.")
    task: TaskConfig = Conciseness()
    space: SpaceConfig = LowRank()
    strategy: StrategyConfig = Nes()
    shaping: Literal["z_score", "centred_ranks"] = Field(
        "z_score", description="How fitness becomes utilities."
    )
    engine: EngineConfig = InProcess()
    fleet: FleetConfig = Local()
    cell: Cell = Cell()
    graders: Graders = Graders()
    held_out: HeldOut = HeldOut()
    record: Recording = Recording()
    batch: int = Field(32, ge=1, description="Examples per generation, the same for every member.")
    generations: int = Field(50, ge=1, description="Generations to run, exactly.")
    seed: int = Field(0, description="Run seed: hashed, so neighbouring seeds share nothing.")

    @model_validator(mode="after")
    def _the_toy_brings_its_model(self) -> "Config":
        if isinstance(self.engine, Toy) and self.model != "nano":
            raise ValueError(
                f"model={self.model} cannot be used by engine=toy, which has a model of its own: "
                "drop one of them"
            )
        return self


KINDS: dict[str, dict[str, type[Section]]] = {
    "task": {"conciseness": Conciseness, "arithmetic": Arithmetic, "countdown": Countdown},
    "space": {"full": Full, "low_rank": LowRank},
    "optimizer": {"sgd": Sgd, "adam": Adam},
    "engine": {"toy": Toy, "inprocess": InProcess},
    "strategy": {"nes": Nes},
    "fleet": {"local": Local},
}
