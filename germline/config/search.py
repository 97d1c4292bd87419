"""Settings of the search: its space, its strategy, shaping and optimizers."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from germline.config.base import KindOf, KindSection, Many
from germline.config.schedules import (
    Adaptive,
    AutoLearningRate,
    AutoSigma,
    CosineSchedule,
    LinearSchedule,
    Rate,
)
from germline.registry import register


class SpaceBase(KindSection):
    """Which tensors are searched."""

    include: Annotated[tuple[str, ...], Many] = ("*",)
    """Glob patterns of canonical tensor names to search."""
    exclude: Annotated[tuple[str, ...], Many] = ()
    """Glob patterns of tensor names to leave alone."""
    layers: str | None = Field(None, coerce_numbers_to_str=True)
    """Decoder layers to search, such as `0-9` or `0,3,20-23`, and no tensors outside layers."""
    has_coordinates: ClassVar[bool] = True
    """Whether a member may be any vector of the searched numbers."""
    trains_an_adapter: ClassVar[bool] = False
    """Whether what is searched can be written as a PEFT adapter."""


@register("space", "germline.spaces.full:Full")
class Full(SpaceBase):
    """Dense noise on every weight; tied tensors count once."""

    kind: Literal["full"] = "full"


class LinearSpace(SpaceBase):
    """A space on the linear layers of the decoder blocks: one batch evaluates the population."""

    unsupported: Literal["refuse", "skip"] = "refuse"
    """Selected weight matrices that are no linear layers, such as fused experts: `refuse` names
    them, `skip` leaves them unperturbed."""


@register("space", "germline.spaces.low_rank:LowRank")
class LowRank(LinearSpace):
    """EGGROLL: noise A B^T / sqrt(rank) on the linear layers of the decoder blocks."""

    kind: Literal["low_rank"] = "low_rank"
    has_coordinates = False
    rank: int = Field(1, ge=1)
    """Rank of a member's perturbation."""


@register("space", "germline.spaces.lora:Lora")
class Lora(LinearSpace):
    """A LoRA adapter: W + alpha / rank * B A beside frozen linear layers of the decoder blocks."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(1, ge=1)
    """Rows of A, columns of B."""
    alpha: float = Field(2.0, gt=0)
    """The adapter adds alpha / rank * B A to a weight."""
    init_scale_a: float | None = Field(None, ge=0)
    """Standard deviation of the starting A; default: 1 / sqrt(inputs of the layer)."""
    init_scale_b: float = Field(0.01, ge=0)
    """Standard deviation of the starting B; 0, as in PEFT, lets A have no effect at first."""
    freeze_a: bool = False
    """Search B alone; A stays as it started."""
    init_adapter: str | None = None
    """Folder of a PEFT adapter to start from; default: a random one."""
    trains_an_adapter: ClassVar[bool] = True


@register("space", "germline.spaces.subspace:Subspace")
class Subspace(LinearSpace):
    """Coordinates in a random subspace, fixed by the run seed, of all linear layers together."""

    kind: Literal["subspace"] = "subspace"
    dimension: int = Field(256, ge=1)
    """Number of coordinates; each changes every selected layer along one random A B^T. At most as
    many as there are weights."""


@register("space", "germline.spaces.singular:Singular")
class Singular(LinearSpace):
    """Offsets of the largest singular values of linear layers (as in ESSA)."""

    kind: Literal["singular"] = "singular"
    top_k: int | None = Field(16, ge=1)
    """Largest singular values searched per matrix, at most as many as there are; `null`: all."""


SpaceConfig = Annotated[SpaceBase, KindOf("space", default="low_rank")]


class ShapingBase(KindSection):
    """Base of all shapings."""


@register("shaping", "germline.shaping:z_score")
class ZScore(ShapingBase):
    """Fitness in standard deviations from the mean."""

    kind: Literal["z_score"] = "z_score"
    clip: float | None = Field(None, gt=0)
    """Largest absolute z-score; larger ones are clipped. Default: no clipping."""


@register("shaping", "germline.shaping:centered_ranks")
class CenteredRanks(ShapingBase):
    """Ranks from -0.5 (worst) to 0.5 (best); distances between rewards have no effect."""

    kind: Literal["centered_ranks"] = "centered_ranks"


@register("shaping", "germline.shaping:log_rank")
class LogRank(ShapingBase):
    """Utilities that fall with the logarithm of the rank; the worse half has equal utilities."""

    kind: Literal["log_rank"] = "log_rank"


@register("shaping", "germline.shaping:mean_centered")
class Raw(ShapingBase):
    """Fitness minus its mean, in the unit of the reward; the learning rate depends on that unit."""

    kind: Literal["raw"] = "raw"


@register("shaping", "germline.shaping:mean_centered")
class PerExample(ShapingBase):
    """Rewards compared with those of all members on the same example; smaller than z-scores."""

    kind: Literal["per_example"] = "per_example"
    scale: Literal["none", "std"] = "none"
    """`none`: reward minus the mean of all members; `std`: also divided by their standard
    deviation, so that all examples have equal weight."""


ShapingConfig = Annotated[ShapingBase, KindOf("shaping", default="z_score")]


class OptimizerBase(KindSection):
    """Settings that every optimizer has."""

    weight_decay: float = Field(0.0, ge=0)
    """Each generation, theta moves towards `decay_to` by this times the learning rate times the
    distance."""
    decay_to: Literal["zero", "start"] = "zero"
    """Target of weight decay: zero, or the starting weights, which a temporary file (`TMPDIR`)
    keeps."""

    @property
    def decays_to_start(self) -> bool:
        """Whether weight decay needs the starting weights."""
        return self.weight_decay > 0 and self.decay_to == "start"


@register("optimizer", "germline.optimizers.sgd:Sgd")
class Sgd(OptimizerBase):
    """SGD; with momentum, its state takes 4 bytes per searched number."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    """Share of the last step that is added to the next one."""


@register("optimizer", "germline.optimizers.adam:Adam")
class Adam(OptimizerBase):
    """Adam; its moments take 8 bytes per searched number."""

    kind: Literal["adam"] = "adam"
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay of the second moment."""
    epsilon: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""


OptimizerConfig = Annotated[OptimizerBase, KindOf("optimizer", default="sgd")]


@register("baseline")
class PopulationMeanBaseline(KindSection):
    """Members are compared with each other: the mean of their fitness counts as neutral."""

    kind: Literal["population"] = "population"


@register("baseline")
class RunningMeanBaseline(KindSection):
    """Members are compared with the generations before them, as a population of 1 must be."""

    kind: Literal["running"] = "running"
    decay: float = Field(0.9, ge=0, lt=1)
    """Decay of the running mean of fitness, per generation."""


BaselineConfig = Annotated[KindSection, KindOf("baseline", default="running")]


@register("zero_signal")
class CountZeroSignal(KindSection):
    """A generation without signal is counted, and its update of zero is applied."""

    kind: Literal["count"] = "count"


@register("zero_signal")
class SkipZeroSignal(KindSection):
    """A generation without signal changes nothing: no theta, moments or weight decay."""

    kind: Literal["skip"] = "skip"


@register("zero_signal")
class GrowSigmaOnZeroSignal(KindSection):
    """Sigma grows after each generation without signal, and shrinks back after each with one."""

    kind: Literal["grow"] = "grow"
    factor: float = Field(1.5, gt=1)
    """Multiplies sigma, or divides it on the way back."""
    most: float = Field(10.0, gt=1)
    """Largest factor by which sigma grows."""


ZeroSignalConfig = Annotated[KindSection, KindOf("zero_signal", default="grow")]


Unit = Literal["constant", "mean_abs", "std", "rms"]
"""Unit of sigma and learning rate: 1, mean |W|, std W or root mean square W."""


class StrategyBase(KindSection):
    """What others ask of a strategy; it follows from the settings that the strategy has."""

    has_coordinates: ClassVar[bool] = False
    """Whether members are vectors of numbers, and not directions of seeds."""
    if TYPE_CHECKING:  # each kind declares it, with a default and limits of its own
        population: int | None

    @property
    def is_calibrated(self) -> bool:
        """Whether sigma is set by the KL divergence of members."""
        return isinstance(getattr(self, "sigma", None), AutoSigma)

    @property
    def grows_sigma(self) -> bool:
        """Whether sigma grows until the members show a signal."""
        sigma = getattr(self, "sigma", None)
        return isinstance(sigma, AutoSigma) and sigma.most_kl > sigma.target_kl

    @property
    def has_measured_rate(self) -> bool:
        """Whether the learning rate is measured."""
        return isinstance(getattr(self, "learning_rate", None), AutoLearningRate)

    @property
    def unit(self) -> Unit:
        """The unit of sigma; `sigma_unit=auto` is `rms` if sigma is calibrated."""
        unit: Unit | Literal["auto"] = getattr(self, "sigma_unit", "auto")
        if unit == "auto":
            return "rms" if self.is_calibrated else "constant"
        return unit

    @property
    def whole_run(self) -> LinearSchedule | CosineSchedule | None:
        """The schedule over all generations, if any; it depends on their number."""
        values = (getattr(self, "sigma", None), getattr(self, "learning_rate", None))
        return next(
            (one for one in values if isinstance(one, LinearSchedule | CosineSchedule)), None
        )


@register("strategy", "germline.strategies.nes:NaturalEvolution")
class Nes(StrategyBase):
    """Natural evolution strategy with Gaussian noise, the usual choice for language models."""

    kind: Literal["nes"] = "nes"
    population: int = Field(32, ge=1)
    """Members per generation (N); 1 needs `baseline=running`."""
    antithetic: bool = True
    """Members come in pairs +noise and -noise."""
    sigma: Adaptive = AutoSigma()
    """Standard deviation of the perturbation, in `sigma_unit`; `auto`: by the KL divergence."""
    sigma_unit: Literal["auto", "constant", "mean_abs", "std", "rms"] = "auto"
    """Unit of sigma and learning rate per tensor: weight units, mean |W|, std W or root mean square
    W of the starting weights, which are those that an adapter or coordinates change. `auto`: `rms`
    where sigma is `auto`, else `constant`."""
    learning_rate: Rate = AutoLearningRate()
    """Multiplies sigma times the estimated gradient (alpha of Qiu et al.), in `sigma_unit`; `auto`
    follows the measured signal."""
    baseline: BaselineConfig = PopulationMeanBaseline()
    """Fitness whose utility is zero."""
    zero_signal: ZeroSignalConfig = CountZeroSignal()
    """What to do when all fitness values of a generation are equal."""
    optimizer: OptimizerConfig = Sgd()

    @property
    def decays_in_fp32(self) -> bool:
        """Whether weight decay moves theta, in fp32 and not beyond its target."""
        rate = self.learning_rate
        if isinstance(rate, AutoLearningRate):
            return True
        largest = rate if isinstance(rate, float) else max(rate.start, rate.end)
        share = self.optimizer.weight_decay * largest
        # Half the relative distance of two neighboring numbers is rounded away.
        return share == 0 or 2.0**-25 <= share <= 1


class CmaBase(StrategyBase):
    """Settings of strategies whose members are vectors of numbers and not seeds of directions."""

    has_coordinates = True
    population: int | None = Field(None, ge=4)
    """Members per generation (N); default: 4 + 3 ln d, for d searched numbers."""
    sigma: float = Field(0.02, gt=0)
    """Step size in generation 0, in `sigma_unit`; it adapts from there."""
    sigma_unit: Literal["auto", "constant", "mean_abs", "std", "rms"] = "constant"
    """As in `nes`; `auto` is `constant`."""
    covariance_rate: float = Field(1.0, ge=0, le=1)
    """Multiplies how fast the covariance learns; 0 adapts the step size alone."""


@register("strategy", "germline.strategies.cma:CovarianceMatrixAdaptation")
class Cma(CmaBase):
    """CMA-ES: learns the covariance of the searched numbers, up to about 2,000 of them."""

    kind: Literal["cma"] = "cma"
    lr_adapt: bool = False
    """Learn slower where fitness is noisy (LRA-CMA-ES), at three times the computation."""


@register("strategy", "germline.strategies.cma:SeparableCovarianceAdaptation")
class SepCma(CmaBase):
    """Separable CMA-ES: a variance for every searched number, up to about a million of them."""

    kind: Literal["sep_cma"] = "sep_cma"


StrategyConfig = Annotated[StrategyBase, KindOf("strategy", default="nes")]
