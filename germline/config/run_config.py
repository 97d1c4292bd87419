"""The config of a run, with the default, unit and meaning of every setting.

A section may be given as its short name alone: `space: full` means `space: {kind: full}`. The
sections that have kinds are in other modules of this package.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from germline import registry
from germline.config.base import Many, Section, TextOrPath, text_with
from germline.config.config_files import absolute_path, change_paths
from germline.config.engines import EngineConfig, FleetConfig, InProcess, Local, MicrobatchSettings
from germline.config.methods import EvolutionStrategy, MethodConfig
from germline.config.schedules import AutoSigma
from germline.config.scorers import ScorerBase, Scorers
from germline.config.search import (
    LowRank,
    Nes,
    OptimizerBase,
    Sgd,
    ShapingConfig,
    SpaceConfig,
    StrategyConfig,
    ZScore,
)
from germline.config.tasks import Conciseness, TaskConfig


class PromptSearch(Section):
    """Prompt options that are searched with the weights: each member uses one per setting.

    The center uses the most likely option of each setting; of equally likely ones, the first.
    """

    template: Annotated[tuple[Annotated[str, text_with("prompt")], ...], Many] = ()
    """Templates of the prompt, with `{prompt}` in place of the task's own prompt."""
    temperature: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Sampling temperatures; 0 is greedy."""
    few_shot: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Numbers of solved training examples in front of the prompt."""
    learning_rate: float = Field(0.3, gt=0, le=1)
    """Share of the estimated natural gradient by which probabilities change."""
    min_probability: float = Field(0.05, ge=0, lt=0.5)
    """Smallest probability of an option."""

    @property
    def options(self) -> dict[str, tuple[object, ...]]:
        """The options of each setting that has some, in the order of their probabilities."""
        names = ("template", "temperature", "few_shot")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @model_validator(mode="after")
    def _probabilities_can_change(self) -> "PromptSearch":
        for name, options in self.options.items():
            if len(set(options)) < len(options):
                raise ValueError(f"{name}={list(options)} has an option twice")
            if self.min_probability * len(options) >= 1:
                raise ValueError(
                    f"min_probability={self.min_probability:g} for each option of {name} leaves "
                    "nothing to change: use less"
                )
        return self


class Graders(Section):
    """Worker processes that grade completions."""

    workers: int = Field(8, ge=1, le=192)
    """Largest number of grader processes; all but the first start only while grading lags."""
    timeout_s: float = Field(2.0, gt=0, le=1e6)
    """Time limit for a completion, in seconds; a slower one earns the task's floor."""
    memory_gb: float | None = Field(4.0, ge=0.1)
    """Memory limit of a grader process, in GB, on Linux; a completion that needs more earns the
    task's floor. `null` sets no limit."""
    variables: Annotated[tuple[str, ...], Many] = ()
    """Environment variables that graders get beside those of paths, locale, threads and caches,
    such as `[OPENAI_API_KEY]`; no token is passed on otherwise."""


class HeldOut(Section):
    """Scores of the center on held-out examples, which are not trained on."""

    every: int = Field(10, ge=1)
    """Generations between held-out scores; the start and the end are always scored."""
    examples: int = Field(100, ge=1)
    """Held-out examples per score."""
    temperature: float | None = Field(0.0, ge=0)
    """Sampling temperature of held-out completions, also in `germline eval`; 0 is greedy, `null` is
    `task.temperature`."""
    patience: int | None = Field(None, ge=1)
    """Held-out scores in a row without a better one after which the run stops early; `null` trains
    all generations. `germline export RUN --generation best` writes the best weights."""
    scorers: Scorers = Field({})
    """Reward models, judges and reward services by name, for held-out completions only. A negative
    `weight` says that lower is better; its size has no effect."""


class Budget(Section):
    """Limits of what a run may spend; it ends after the generation that reaches one.

    Held-out scores are counted apart. `generations` stays the largest number of generations.
    """

    rollouts: int | None = Field(None, ge=1)
    """Completions or episodes generated in training."""
    tokens: int | None = Field(None, ge=1)
    """Tokens generated in training."""
    flops: float | None = Field(None, gt=0)
    """Floating point operations of forward and backward passes, estimated from the size of the
    model and the tokens."""
    cpu_minutes: float | None = Field(None, gt=0)
    """Processor time of generations, in minutes, of all processes of the run on this machine."""
    minutes: float | None = Field(None, gt=0)
    """Time of generations by the clock, in minutes."""

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        named = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in named if value is not None}


class Retained(Section):
    """What training should not make the model worse at, scored beside the held-out examples."""

    task: TaskConfig | None = None
    """Task whose held-out examples are answered and graded by its own rewards."""
    text: Path | None = None
    """File of text in UTF-8, of which the model's nats per token are measured; lower is better."""
    examples: int = Field(50, ge=1)
    """Held-out examples of the task, or passages of 96 tokens of the text, the first ones."""
    every: int = Field(1, ge=1)
    """Held-out scores from one score of this to the next; start and end are always scored."""
    max_drop: float | None = Field(None, ge=0)
    """Largest loss against the start, in the unit of the score; the run stops at a larger one."""

    @model_validator(mode="after")
    def _is_a_task_or_a_text(self) -> "Retained":
        if (self.task is None) == (self.text is None):
            raise ValueError("needs a task or a text, and not both")
        return self


class Recording(Section):
    """The files of a run directory."""

    snapshot_every: int = Field(25, ge=1)
    """Generations between snapshots of masters and optimizer moments."""
    keep_snapshots: int = Field(2, ge=0)
    """Newest snapshots kept; older generations are replayed from the journal. After gradients,
    which are not, one at least, and that of the best held-out score as well."""
    rollouts: int = Field(8, ge=0)
    """Rollouts written per generation: the best, the worst and a spread between."""
    rewards: bool = False
    """Write the reward of every member on every example, `rewards/GENERATION.npz`."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb: bool = False
    """Log to Weights & Biases (`pip install 'germline[wandb]'`), by its environment variables, such
    as WANDB_PROJECT and WANDB_MODE=offline."""
    edge: float | None = Field(None, gt=0)
    """Sigma at which random members break, in `strategy.sigma_unit`, which the report compares the
    updates with; `germline probe` measures it and writes it into probe.yaml."""
    shared: str | None = None
    """Folder in which runs share what they generate before their first update, if only the update
    rule or their length differs; it must not be writable by others. A sweep sets it."""


class Config(Section):
    """One training run."""

    model: TextOrPath = Field("nano", min_length=1)
    """`nano` (embedded), a folder, a GGUF file, or a Hugging Face id."""
    task: TaskConfig = Conciseness.model_construct()  # validation would fix the kinds
    space: SpaceConfig = LowRank()
    method: MethodConfig = EvolutionStrategy()
    strategy: StrategyConfig = Nes.model_construct()  # likewise
    prompt_search: PromptSearch = PromptSearch()
    shaping: ShapingConfig = ZScore()
    engine: EngineConfig = InProcess()
    fleet: FleetConfig = Local()
    microbatch: MicrobatchSettings = MicrobatchSettings()
    graders: Graders = Graders()
    held_out: HeldOut = HeldOut.model_construct()  # likewise
    budget: Budget = Budget()
    retained: dict[str, Retained] = Field({})
    """Tasks and texts by name, such as `{sums: {task: arithmetic}, prose: {text: book.txt}}`, that
    are scored before, during and after training."""
    record: Recording = Recording()
    batch_size: int = Field(32, ge=1)
    """Examples per generation, the same for every member."""
    generations: int = Field(50, ge=1)
    """Generations to run, exactly."""
    seed: int = 0
    """Run seed: hashed, so neighboring seeds share nothing."""

    @property
    def optimizer(self) -> OptimizerBase:
        """The optimizer that applies updates: the strategy's, or plain SGD where it has none."""
        optimizer: OptimizerBase = getattr(self.strategy, "optimizer", Sgd())
        return optimizer

    @property
    def keeps_start(self) -> bool:
        """Whether updates may move theta towards the starting weights."""
        return self.method.decays and self.strategy.has_measured_rate

    @property
    def scorers(self) -> dict[str, ScorerBase]:
        """All scorers by their section: of the reward, and of held-out completions."""
        of_task = {f"task.scorers.{name}": one for name, one in self.task.scorers.items()}
        held_out = {f"held_out.scorers.{name}": one for name, one in self.held_out.scorers.items()}
        return {**of_task, **held_out}

    @property
    def max_drops(self) -> dict[str, float]:
        """The largest loss of each of `retained` that has one."""
        limits = {name: one.max_drop for name, one in self.retained.items()}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def search(self) -> StrategyConfig:
        """The strategy of the search; sigma is not calibrated if the method sets its own."""
        sigma = getattr(self.strategy, "sigma", None)
        if not isinstance(sigma, AutoSigma):
            return self.strategy
        # Without a sigma, members equal the center and any number does.
        first = next(iter(self.method.member_sigmas(sigma)), 0.005)
        return self.strategy.model_copy(update={"sigma": first})

    def with_absolute_paths(self) -> "Config":
        """Return the config with absolute paths, so that it means the same in any folder."""
        return Config.model_validate(change_paths(self.model_dump(), absolute_path))

    @model_validator(mode="before")
    @classmethod
    def _the_method_has_defaults(cls, values: object) -> object:
        if not isinstance(values, Mapping):
            return values
        method = values.get("method")
        kind = method.get("kind") if isinstance(method, Mapping) else method
        section = registry.sections("method").get(str(kind))
        for setting, value in section.other_defaults.items() if section else ():
            values = _with_default(values, setting.split("."), value)
        return values


def _with_default(
    values: Mapping[str, Any], path: Sequence[str], value: object
) -> Mapping[str, Any]:
    """Return settings with a value at a path, unless it is given or the chosen kind has no such."""
    name, *rest = path
    if not rest:
        return {name: value, **values}
    given = values.get(name, {})
    given = {"kind": given} if isinstance(given, str) else given
    if not isinstance(given, Mapping):
        return values
    chosen = registry.sections(name).get(str(given.get("kind")))
    if chosen is not None and rest[0] not in chosen.model_fields:
        return values
    return {**values, name: _with_default(given, rest, value)}
