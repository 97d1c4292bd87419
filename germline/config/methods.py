"""Settings of methods: how a run uses the rollouts of perturbed members."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.config.safe_alignment import SafeAlignment
from germline.config.schedules import (
    LARGEST_SIGMA,
    Adaptive,
    AutoLearningRate,
    AutoSigma,
    NaturalGradientSigma,
    PlateauSchedule,
    SuccessRateSigma,
)
from germline.config.strategies import Nes
from germline.registry import register

if TYPE_CHECKING:
    from germline.config.run_config import Config

GRADIENTS_OF = ("full", "low_rank")
"""Spaces whose tensors belong to the model, which backpropagation reaches."""

LEAST_EXAMPLES = 4
"""Examples that a member of zo_grpo scores at least: the length of a step follows from how examples
agree."""

SCORING_PAIRS = 2
"""Pairs that try a sigma, where members only score."""


class MethodSection(KindSection):
    """Base of the methods, with the properties that other packages use.

    Attributes:
        trains_center: whether theta changes; if not, members answer by vote.
        replayable: whether seeds and coefficients rebuild every generation; if not, only snapshots
            do.
        members_generate: whether fitness is that of members; if not, that of samples of the center.
        smoke_overrides: settings of the method in a run of `--smoke`.
        other_defaults: defaults of settings of other sections, as `section.setting`.
    """

    trains_center: ClassVar[bool] = True
    replayable: ClassVar[bool] = True
    members_generate: ClassVar[bool] = True
    smoke_overrides: ClassVar[tuple[str, ...]] = ()
    other_defaults: ClassVar[Mapping[str, object]] = {}

    @property
    def graded(self) -> str:
        """What a fitness of a generation is of, in a word."""
        return "member" if self.members_generate else "sample"

    def generated_rows(self, population: int) -> int:
        """Return how many completions of each example a generation has, given its members."""
        return population

    def scored_rows(self, examples: int) -> int:
        """Return how many completions every member scores at most, given the examples."""
        return 0

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of members, given `strategy.sigma`; none if they equal the center."""
        return (sigma,)

    def title(self, strategy: str) -> str:
        """Name the method in the title of a run, given the kind of the strategy."""
        return self.kind

    def check(self, config: "Config") -> None:
        """Refuse settings of other sections that the method cannot use: here, prompt options.

        Raises:
            ValueError: names the settings and a remedy.
        """
        if config.prompt_search.options:
            names = ", ".join(config.prompt_search.options)
            raise ValueError(
                f"the options of prompt_search ({names}) cannot be searched by method.kind="
                f"{self.kind}: use method.kind=es, or drop them"
            )


class SeedsMethodSection(MethodSection):
    """Base of the methods whose members are seeds, and whose rewards do not change over a run."""

    def check(self, config: "Config") -> None:
        """Refuse other strategies than nes, and a cost whose weight adapts.

        Raises:
            ValueError: names the settings and a remedy.
        """
        super().check(config)
        strategy, task = config.strategy, config.task
        if not isinstance(strategy, Nes):
            raise ValueError(
                f"strategy.kind={strategy.kind} cannot be used by method.kind={self.kind}, whose "
                "members are seeds: use strategy.kind=nes"
            )
        if isinstance(task, SafeAlignment) and task.adapts:
            raise ValueError(
                f"task.lambda_lr={task.lambda_lr:g} and task.safe_first={task.safe_first} change "
                f"rewards over a run, which needs method.kind=es, found {self.kind}: set "
                "task.lambda_lr=0 and task.safe_first=null to keep lambda as it is"
            )


@register("method", "germline.methods.evolution_strategy:EvolutionStrategyMethod")
class EvolutionStrategy(MethodSection):
    """Evolution strategy: the members, utilities and updates of `strategy`."""

    kind: Literal["es"] = "es"

    def title(self, strategy: str) -> str:
        """Name the strategy."""
        return strategy

    def check(self, config: "Config") -> None:
        """Refuse a measured learning rate where there are no examples to compare.

        Raises:
            ValueError: the batch has one example.
        """
        _check_measured_rate(config)


@register("method", "germline.methods.randopt:RandOptMethod")
class RandOpt(SeedsMethodSection):
    """RandOpt: keep the best of many random members and let them vote; theta never changes."""

    kind: Literal["randopt"] = "randopt"
    trains_center = False
    smoke_overrides = ("method.ensemble_size=2",)
    ensemble_size: int = Field(
        8, ge=1, description="Number of members that vote: those of the largest fitness."
    )
    sigmas: tuple[Annotated[float, Field(gt=0, le=LARGEST_SIGMA)], ...] | None = Field(
        None,
        min_length=1,
        description=(
            "Sigmas that the directions use in turn, in `strategy.sigma_unit`; default: "
            "`strategy.sigma` for all."
        ),
    )

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of the list, or that of the strategy."""
        return self.sigmas or (sigma,)

    def check(self, config: "Config") -> None:
        """Refuse a sigma that changes, and a larger ensemble than there are members.

        Raises:
            ValueError: names the settings and a remedy.
        """
        super().check(config)
        nes = config.strategy
        assert isinstance(nes, Nes)
        if not isinstance(nes.sigma, float | AutoSigma):
            raise ValueError(
                f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={self.kind}: "
                "give a number or auto, or method.sigmas=[...] for several"
            )
        if self.ensemble_size > nes.population * config.generations:
            raise ValueError(
                f"method.ensemble_size={self.ensemble_size} is more than the "
                f"{nes.population * config.generations} members of strategy.population times "
                "generations: keep fewer or evaluate more"
            )


@register("method", "germline.methods.es_sample_gd:EsSampleGradientDescentMethod")
class EsSampleGradientDescent(SeedsMethodSection):
    """Sample with ES, optimize with gradients: backpropagation on completions of the members."""

    kind: Literal["es_sample_gd"] = "es_sample_gd"
    replayable = False
    exploration: Literal["weights", "temperature"] = Field(
        "weights",
        description=(
            "Source of completions: `weights`, members perturbed by `strategy`; `temperature`, the "
            "center, as often as there are members, by sampling at `task.temperature`."
        ),
    )
    advantage: Literal["example", "member"] = Field(
        "example",
        description=(
            "What `shaping` compares: `example`, the members' rewards on each example; `member`, "
            "their fitness, as in ES."
        ),
    )
    clip: float | None = Field(
        None,
        gt=0,
        lt=1,
        description=(
            "Weight tokens by the ratio of their probabilities under the center and under the "
            "member that generated them, clipped to 1 ± clip; default: no weights."
        ),
    )
    rows: int = Field(
        32,
        ge=1,
        description=(
            "Completions per backward pass; fewer need less memory. Another number may change the "
            "last bits of the gradient."
        ),
    )

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return no sigma if the center itself samples the completions."""
        return () if self.exploration == "temperature" else (sigma,)

    def check(self, config: "Config") -> None:
        """Refuse what has no gradient: other engines and spaces, a measured rate.

        Raises:
            ValueError: names the settings and a remedy.
        """
        super().check(config)
        nes = config.strategy
        assert isinstance(nes, Nes)
        why = f"by method.kind={self.kind}"
        if isinstance(nes.sigma, NaturalGradientSigma):
            raise ValueError(
                f"strategy.sigma.kind=natural cannot be used {why}, whose gradient does not "
                "contain sigma: give a number or another schedule"
            )
        if isinstance(nes.learning_rate, AutoLearningRate):
            raise ValueError(
                f"strategy.learning_rate=auto cannot be used {why}, which follows a gradient and "
                "not the differences between members: give a number, such as 0.0005"
            )
        self._check_model(config)

    def _check_model(self, config: "Config") -> None:
        space, fleet = config.space, config.fleet
        refusal = f"cannot be used by method.kind={self.kind}"
        if space.kind not in GRADIENTS_OF:
            raise ValueError(
                f"space.kind={space.kind} {refusal}, whose gradient moves whole tensors of the "
                f"model: use space.kind={' or '.join(GRADIENTS_OF)}"
            )
        if config.engine.kind != "inprocess":
            raise ValueError(
                f"engine.kind={config.engine.kind} {refusal}, as it has no gradients: use inprocess"
            )
        if fleet.kind != "local":
            raise ValueError(
                f"fleet.kind={fleet.kind} {refusal}, which runs one model here: use local"
            )
        if fleet.engines > 1:
            raise ValueError(
                f"fleet.engines={fleet.engines} {refusal}, which runs one model: use 1"
            )
        if self.exploration == "temperature" and config.task.temperature == 0:
            raise ValueError(
                "task.temperature=0 writes the same completion every time, so method.exploration="
                "temperature has nothing to compare: set task.temperature=1"
            )
        if config.task.kl_coef is not None:
            raise ValueError(
                f"task.kl_coef={config.task.kl_coef:g} loads the start model beside the trained "
                "one, and method.kind=es_sample_gd has gradients of one model: drop kl_coef"
            )


@register("method", "germline.methods.zo_grpo:ZerothOrderGrpoMethod")
class ZerothOrderGrpo(SeedsMethodSection):
    """Zeroth-order GRPO: the center samples completions, and the members score them."""

    kind: Literal["zo_grpo"] = "zo_grpo"
    members_generate = False
    other_defaults: ClassVar[Mapping[str, object]] = {
        "strategy.population": 128,
        "strategy.antithetic": False,
    }
    smoke_overrides = ("method.group_size=2", "method.rows_per_member=4")
    group_size: int = Field(
        8, ge=2, description="Completions that the center samples for each example."
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description=(
            "Temperature of these samples; `task.temperature` is that of held-out completions."
        ),
    )
    scale_rewards: Literal["group", "batch", "none"] = Field(
        "group",
        description=(
            "Standard deviation by which advantages are divided: of the rewards of an example, of "
            "the whole batch, or none."
        ),
    )
    rows_per_member: int = Field(
        16,
        ge=1,
        description=(
            "Completions that every member scores at most, drawn in proportion to the size of "
            "their advantage. Other members score other ones."
        ),
    )
    updates_per_batch: int = Field(
        1,
        ge=1,
        description=(
            "Generations that learn from the same samples, each with other members; tokens are "
            "weighted by the ratio of their probability to that when they were sampled."
        ),
    )
    clip: float | None = Field(
        0.2,
        gt=0,
        description=(
            "Tokens whose ratio has left 1 ± clip in the direction of their advantage no longer "
            "count, as in GRPO; null: they do."
        ),
    )
    relative_step: float = Field(
        0.36,
        gt=0,
        description=(
            "Length of a step of `strategy.learning_rate=auto` that is all signal: root mean "
            "square change of the log-probabilities of tokens, as a share of their own root mean "
            "square. Other steps are shorter: by the root of the share of signal, and later."
        ),
    )
    mask_truncated_completions: bool = Field(
        default=False,
        description="Leave out completions that were cut by the length limit, as in TRL.",
    )

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigma, which does not grow: it only has to be small and above rounding."""
        if isinstance(sigma, AutoSigma):
            pairs = sigma.pairs or SCORING_PAIRS
            return (sigma.model_copy(update={"max_kl": sigma.target_kl, "pairs": pairs}),)
        return (sigma,)

    def title(self, strategy: str) -> str:
        """Name the method and its group size."""
        return f"{self.kind} G = {self.group_size}"

    def generated_rows(self, population: int) -> int:
        """Return the size of a group."""
        return self.group_size

    def scored_rows(self, examples: int) -> int:
        """Return `rows_per_member`, or all completions where they are fewer."""
        return min(self.rows_per_member, self.group_size * examples)

    def check(self, config: "Config") -> None:
        """Refuse a sigma that follows the fitness of members, and a quorum of engines.

        Raises:
            ValueError: names the settings and a remedy.
        """
        super().check(config)
        nes = config.strategy
        assert isinstance(nes, Nes)
        if isinstance(nes.sigma, NaturalGradientSigma | PlateauSchedule | SuccessRateSigma):
            raise ValueError(
                f"strategy.sigma.kind={nes.sigma.kind} cannot be used by method.kind={self.kind}, "
                "whose members have no rewards of their own: give a number or auto"
            )
        if config.fleet.quorum < 1:
            raise ValueError(
                f"fleet.quorum={config.fleet.quorum:g} cannot be used by method.kind={self.kind}, "
                "which needs the scores of all members: drop it"
            )
        _check_measured_rate(config)


def _check_measured_rate(config: "Config") -> None:
    """Refuse a measured learning rate where there are no examples to compare.

    Raises:
        ValueError: the batch has one example.
    """
    measured = isinstance(getattr(config.strategy, "learning_rate", None), AutoLearningRate)
    if measured and config.batch_size == 1:
        raise ValueError(
            "strategy.learning_rate=auto measures signal and noise by how examples differ, "
            "and batch_size=1 has one: use batch_size=2 or more, or give learning_rate as a "
            "number, such as 0.01"
        )


MethodConfig = Annotated[
    EvolutionStrategy | RandOpt | EsSampleGradientDescent | ZerothOrderGrpo,
    KindOf("method", default="es"),
]
