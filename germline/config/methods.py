"""Settings of methods: how a run uses the rollouts of perturbed members."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection
from germline.config.schedules import LARGEST_SIGMA, Adaptive, AutoSigma
from germline.registry import register

SampleFitness = Literal["mean", "pass_at_k", "worst_of_k", "majority"]

LEAST_EXAMPLES = 4
"""Examples that a member of zo_grpo scores at least: the length of a step leaves out the example to
which a token belongs."""


class MethodSection(KindSection):
    """Base of the methods, with the properties that other packages use."""

    trains_center: ClassVar[bool] = True
    """Whether theta changes; if not, members answer by vote."""
    replayable: ClassVar[bool] = True
    """Whether seeds and coefficients rebuild every generation; if not, only snapshots do."""
    members_generate: ClassVar[bool] = True
    """Whether fitness is that of members; if not, that of samples of the center."""
    perturbs: ClassVar[bool] = True
    """Whether members are perturbed; if not, `strategy` has a rate and an optimizer alone."""
    members_are_seeds: ClassVar[bool] = False
    """Whether members are seeds of directions, as in nes, and rewards must not change in a run."""
    searches_prompts: ClassVar[bool] = False
    """Whether members may use different options of `prompt_search`."""
    backpropagates: ClassVar[bool] = False
    """Whether theta follows gradients found by backpropagation, in one process."""
    trains_adapters: ClassVar[bool] = True
    """Whether it can train a LoRA adapter."""
    other_defaults: ClassVar[Mapping[str, object]] = {}
    """Defaults of settings of other sections, as `section.setting`."""

    @property
    def restart(self) -> str:
        """The commands that begin a run from the best weights of another; a fork is replayed."""
        if self.replayable:
            return "resume --from best"
        return "export --generation best --merged, then train with model="

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

    @property
    def decays(self) -> bool:
        """Whether updates with a measured rate may move weights towards the starting weights."""
        return False

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of members, given `strategy.sigma`; none if they equal the center."""
        return (sigma,)


@register("method", "germline.methods.prompt_search:EvolutionStrategyMethod")
class EvolutionStrategy(MethodSection):
    """Evolution strategy: the members, utilities and updates of `strategy`."""

    kind: Literal["es"] = "es"
    searches_prompts = True
    samples: int = Field(1, ge=1)
    """Completions of each example by every member, at `task.temperature`."""
    fitness: SampleFitness = "mean"
    """Reward of these samples together: their mean, the best (pass@k of right and wrong answers,
    with k = samples), the worst, or that of the answer that most of them give."""

    def generated_rows(self, population: int) -> int:
        """Return the samples of all members."""
        return population * self.samples


@register("method", "germline.methods.randopt:RandOptMethod")
class RandOpt(MethodSection):
    """RandOpt: keep the best of many random members and let them vote; theta never changes."""

    kind: Literal["randopt"] = "randopt"
    members_are_seeds = True
    trains_center = False
    ensemble_size: int = Field(8, ge=1)
    """Number of members that vote: those of the largest fitness."""
    sigmas: tuple[Annotated[float, Field(gt=0, le=LARGEST_SIGMA)], ...] | None = Field(
        None, min_length=1
    )
    """Sigmas that the directions use in turn, in `strategy.sigma_unit`; default: `strategy.sigma`
    for all."""

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigmas of the list, or that of the strategy."""
        return self.sigmas or (sigma,)


@register("method", "germline.methods.es_sample_gd:EsSampleGradientDescentMethod")
class EsSampleGradientDescent(MethodSection):
    """Sample with ES, optimize with gradients; with `exploration: temperature`, REINFORCE."""

    kind: Literal["es_sample_gd"] = "es_sample_gd"
    members_are_seeds = True
    replayable = False
    backpropagates = True
    trains_adapters = False
    exploration: Literal["weights", "temperature"] = "weights"
    """Source of completions: `weights`, members perturbed by `strategy`; `temperature`, as many
    samples of the center at `task.temperature`."""
    advantage: Literal["example", "member"] = "example"
    """What `shaping` compares: the members' rewards on each `example`, or the fitness of each
    `member`, as in ES."""
    rows: int = Field(32, ge=1)
    """Completions per backward pass; fewer need less memory. Another number may change bits."""

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return no sigma if the center itself samples the completions."""
        return () if self.exploration == "temperature" else (sigma,)


class CenterSamplesSection(MethodSection):
    """Base of the methods that compare samples of the center, a group of them for each example."""

    members_are_seeds = True
    members_generate = False
    group_size: int = Field(8, ge=2)
    """Completions that the center samples for each example."""
    temperature: float = Field(1.0, gt=0)
    """Temperature of these samples; `held_out.temperature` is that of held-out completions."""

    def generated_rows(self, population: int) -> int:
        """Return the size of a group."""
        return self.group_size


@register("method", "germline.methods.zo_grpo:ZerothOrderGrpoMethod")
class ZerothOrderGrpo(CenterSamplesSection):
    """Zeroth-order GRPO: the center samples completions, and the members score them."""

    kind: Literal["zo_grpo"] = "zo_grpo"
    other_defaults: ClassVar[Mapping[str, object]] = {
        "strategy.population": 128,
        "strategy.antithetic": False,
        "shaping.kind": "centered_ranks",
    }
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Standard deviation by which advantages are divided: of the rewards of an example, of the
    whole batch, or none."""
    rows_per_member: int = Field(16, ge=1)
    """Completions that each member scores at most, drawn in proportion to the size of their
    advantage."""
    updates_per_batch: int = Field(1, ge=1)
    """Generations that learn from the same samples, each with other members; tokens are weighted by
    the ratio of their probability to that when they were sampled."""
    clip: float | None = Field(0.2, gt=0)
    """Tokens whose ratio has left 1 ± clip in the direction of their advantage do not count, as in
    GRPO; `null`: they do."""
    relative_step: float = Field(0.2, gt=0)
    """Length of the first step of `strategy.learning_rate=auto`: root mean square change of the
    log-probabilities of tokens, as a share of their own."""
    longest_relative_step: float = Field(0.6, gt=0)
    """Longest step, in the same unit: steps get longer while rewards stay what they are, and then
    shorter."""
    step_halved_after: float | None = Field(6.0, gt=0)
    """Number of generations with changed rewards, or whose step could not grow, after which steps
    are half as long as otherwise; `null`: none. Answers that get likelier shorten steps anyway."""
    weight_decay: float = Field(0.1, ge=0, le=0.3)
    """Share of the way back to the starting weights, which a temporary file (`TMPDIR`) keeps, that
    weights move before a step as long as the first; before others in proportion, at most three
    times as far. Only with `strategy.learning_rate=auto`, in generations whose steps do not grow
    and whose mean reward is below the highest so far."""
    mask_truncated_completions: bool = False
    """Leave out completions that were cut by the length limit, as in TRL."""

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return the sigma, which does not grow: it only has to be small and above rounding."""
        if isinstance(sigma, AutoSigma):
            pairs = sigma.pairs or 2
            return (sigma.model_copy(update={"max_kl": sigma.target_kl, "pairs": pairs}),)
        return (sigma,)

    @property
    def decays(self) -> bool:
        """Whether `weight_decay` is not 0."""
        return self.weight_decay > 0

    def scored_rows(self, examples: int) -> int:
        """Return `rows_per_member`, or all completions if they are fewer."""
        return min(self.rows_per_member, self.group_size * examples)


class PolicyGradientSection(CenterSamplesSection):
    """Base of the baselines that sample from the center and learn by backpropagation."""

    replayable = False
    perturbs = False
    backpropagates = True
    other_defaults: ClassVar[Mapping[str, object]] = {
        "strategy.optimizer.kind": "adam",
        "strategy.learning_rate": 1e-5,
    }
    rows: int = Field(32, ge=1)
    """Completions per backward pass, at most; fewer need less memory. Another number may change
    bits."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest norm of a gradient; a longer one is shortened."""

    def member_sigmas(self, sigma: Adaptive) -> tuple[Adaptive, ...]:
        """Return no sigma: nothing is perturbed."""
        return ()


RlooArgument = Literal[
    "epsilon", "epsilon_high", "gradient_checkpointing", "normalize_advantages", "reward_clip_range"
]
GrpoArgument = Literal[
    "cast_lm_head_to_fp32",
    "delta",
    "entropy_coef",
    "epsilon",
    "epsilon_high",
    "gradient_checkpointing",
    "importance_sampling_level",
    "loss_type",
    "off_policy_mask_threshold",
    "scale_rewards",
    "top_entropy_quantile",
]
"""Arguments of TRL that change advantages, loss or memory; what samples and steps is germline's."""


class TrlSection(PolicyGradientSection):
    """Base of the baselines whose advantages and loss are those of TRL."""

    num_iterations: int = Field(1, ge=1)
    """Updates per batch of samples."""
    beta: float = Field(0.0, ge=0)
    """Coefficient of the KL divergence from the start model."""


@register("method", "germline.methods.trl_policy_gradient:TrlMethod")
class Grpo(TrlSection):
    """GRPO of TRL: samples compared within their group, and backpropagation."""

    kind: Literal["grpo"] = "grpo"
    args: dict[GrpoArgument, Any] = Field({})
    """Arguments of `trl.GRPOConfig` that the loss depends on, such as `{loss_type: dr_grpo}`."""


@register("method", "germline.methods.trl_policy_gradient:TrlMethod")
class Rloo(TrlSection):
    """RLOO of TRL: samples compared with the others of their group, and backpropagation."""

    kind: Literal["rloo"] = "rloo"
    args: dict[RlooArgument, Any] = Field({})
    """Arguments of `trl.RLOOConfig` that the loss depends on, such as `{epsilon: 0.1}`."""


class EpochsSection(PolicyGradientSection):
    """Base of the baselines whose loss is germline's own: several steps per batch of samples."""

    other_defaults: ClassVar[Mapping[str, object]] = {
        "strategy.optimizer.kind": "adam",
        "strategy.learning_rate": 3e-5,
    }
    epochs: int = Field(1, ge=1)
    """Passes over the samples of a generation."""
    minibatches: int = Field(4, ge=1)
    """Parts into which each pass cuts the samples, each with a step of its own."""


@register("method", "germline.methods.ppo:PpoMethod")
class Ppo(EpochsSection):
    """PPO: a value head gives every token an advantage, and steps stay near the sampling model."""

    kind: Literal["ppo"] = "ppo"
    group_size: int = Field(8, ge=1)
    """Completions that the center samples for each example."""
    clip: float = Field(0.2, gt=0)
    """Tokens whose ratio has left 1 ± clip in the direction of their advantage do not count."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of a later reward, per token."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Weight of longer returns in generalized advantage estimation: 1 uses the reward alone, 0 the
    value of the next token."""
    value_learning_rate: float = Field(1e-2, gt=0)
    """Learning rate of the value head, by Adam; its values are in standard deviations of the
    rewards."""


@register("method", "germline.methods.sft_on_best:SftOnBestMethod")
class SftOnBest(EpochsSection):
    """Rejection-sampling fine-tuning: supervised fine-tuning on the best samples (RAFT, STaR)."""

    kind: Literal["sft_on_best"] = "sft_on_best"
    threshold: float | None = None
    """Least reward of a best sample that is learned; default: the best samples of each example
    whose rewards differ."""


MethodConfig = Annotated[MethodSection, KindOf("method", default="es")]
