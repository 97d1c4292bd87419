"""The data types that travel between packages: frozen, picklable, free of torch.

In one generation, a fleet evaluates a `Population` of members on a batch of `Example`s. Each member
writes one `Completion` per example, which is graded and kept as a `Rollout`; all rollouts are an
`Evaluation`. From it the strategy computes an `Update` (`MeanUpdate` where members are vectors of
coordinates). Packages exchange seeds, coefficients, coordinates and text, never weights.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Float32

from germline.errors import EngineLost as EngineLost
from germline.errors import GermlineError as GermlineError
from germline.example import Completion as Completion
from germline.example import Decoding as Decoding
from germline.example import Example as Example
from germline.example import Finish as Finish
from germline.example import Grade as Grade
from germline.example import Rollout as Rollout

TensorKind = Literal[
    "linear",
    "embedding",
    "norm",
    "bias",
    "expert",
    "router",
    "adapter",
    "coordinates",
    "non_text",
    "other",
]
Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class SeedPerturbation:
    """A perturbation by seed: theta + sign * sigma * noise(run_seed, generation, direction).

    Attributes:
        generation: of the noise; earlier than the population's where members are kept.
        sigma: standard deviation, in the unit the space gives each tensor (1 for constant sigma).
        sign: +1 or -1; an antithetic pair shares the direction and differs in the sign.
    """

    run_seed: int
    generation: int
    direction: int
    sign: int
    sigma: float


@dataclass(frozen=True, slots=True, eq=False)
class VectorPerturbation:
    """A perturbation by value: theta + unit * offsets, over all searched numbers in order."""

    generation: int
    index: int
    offsets: Float32[np.ndarray, " dimension"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VectorPerturbation) and self._bits() == other._bits()

    def __hash__(self) -> int:
        return hash(self._bits())

    def _bits(self) -> tuple[int, int, bytes]:
        return self.generation, self.index, self.offsets.tobytes()


Perturbation = SeedPerturbation | VectorPerturbation


def as_seed_perturbation(member: Perturbation) -> SeedPerturbation:
    """Return a member as the `SeedPerturbation` that it must be."""
    if isinstance(member, SeedPerturbation):
        return member
    raise GermlineError(
        "members given by coordinates cannot be used where directions are drawn: "
        "strategy.kind=cma and sep_cma need a space that has coordinates, such as space.kind=full"
    )


@dataclass(frozen=True, slots=True)
class PromptVariant:
    """The prompt options of one member; None means the value of the task.

    Attributes:
        temperature: of sampling; 0 is greedy.
        few_shot: number of solved training examples before the prompt.
        template: text around the prompt, with `{prompt}` in place of the task's own prompt.
    """

    temperature: float | None = None
    few_shot: int | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Population:
    """The members of one generation in order; antithetic ones 2k and 2k + 1 are a pair.

    Attributes:
        evaluate_center: whether the strategy needs the fitness of the center on the same batch.
        baseline: the fitness that gets utility 0; None: the mean of the members.
        prompt_variants: the prompt options of each member, if any; a pair shares them.
        needs_every_member: whether fleets wait for late members: held-out scores have no quorum.
    """

    generation: int
    members: tuple[Perturbation, ...]
    antithetic: bool
    evaluate_center: bool = False
    baseline: float | None = None
    prompt_variants: tuple[PromptVariant, ...] = ()
    needs_every_member: bool = False

    def __len__(self) -> int:
        return len(self.members)

    def seed_perturbations(self) -> tuple[SeedPerturbation, ...]:
        """Return seed perturbations; raise a GermlineError where members are coordinates."""
        return tuple(map(as_seed_perturbation, self.members))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One canonical Hugging Face parameter: tied tensors appear once, under their first name.

    Attributes:
        kind: its role; `linear`: weight of a linear layer of a decoder block, or of an untied head;
            `adapter`: part of a LoRA adapter; `coordinates`: of directions of frozen matrices;
            `non_text`: of a part that no text passes, such as a vision tower.
        layer: index of the decoder block it belongs to, or None outside the blocks.
        transposed: whether a linear weight is stored `[in, out]`, as GPT-2's Conv1D does.
        aliases: the other names of a tied tensor.
    """

    name: str
    shape: tuple[int, ...]
    kind: TensorKind
    layer: int | None
    transposed: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def out_in_features(self) -> tuple[int, int]:
        """Numbers of output and input features of a linear layer."""
        first, second = self.shape
        return (second, first) if self.transposed else (first, second)

    @property
    def adapter_names(self) -> tuple[str, str]:
        """Names of A and B of a LoRA adapter of a linear layer; as noise seeds, they are fixed."""
        module = self.name.removesuffix(".weight")
        return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards of a population on a batch: `rewards[member, example]`, NaN when missing."""

    rewards: Float[np.ndarray, "members examples"]
    rollouts: tuple[Rollout, ...]
    tokens: int
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class SigmaUpdate:
    """How an update changes the sigma of each tensor, from the fitness along the tensor's noise.

    Attributes:
        coefficients: one per direction, for equation (1) of `spaces.sigma_units`.
        min, max: bounds of a tensor's sigma, as multiples of the update's sigma.
    """

    coefficients: tuple[float, ...]
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Update:
    """What `tell` returns: theta <- theta + step(sum_k coefficients[k] * noise(direction k)).

    The coefficients include utilities, signs and the 1/N of the population; see `strategies.nes`.

    Attributes:
        sigma_update: how the sigmas of tensors change, where each tensor has its own.
        skipped: whether `apply` changes nothing: neither theta nor moments, and no weight decays.
        backpropagated: whether theta followed a backpropagated gradient; seeds cannot repeat it.
        decay: share of the way to the starting weights that theta moves before the step.
        strategy_state: what the strategy needs to `recall` a stopped run: JSON values by name, with
            lists for sequences, which a journal returns unchanged and nobody else reads.
    """

    run_seed: int
    generation: int
    sigma: float
    learning_rate: float
    coefficients: tuple[float, ...]
    sigma_update: SigmaUpdate | None = None
    skipped: bool = False
    backpropagated: bool = False
    decay: float = 0.0
    strategy_state: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def has_no_signal(self) -> bool:
        """Whether the update changes neither theta nor a sigma: all coefficients are 0."""
        sigma_coefficients = self.sigma_update.coefficients if self.sigma_update else ()
        return not any((*self.coefficients, *sigma_coefficients))

    @property
    def step_in_sigmas(self) -> float | None:
        """Root mean square of a plain SGD step, in sigmas; None without directions."""
        if not self.coefficients or not self.sigma:
            return None
        return self.learning_rate * math.hypot(*self.coefficients) / self.sigma


@dataclass(frozen=True, slots=True)
class MeanUpdate:
    """What `tell` of a coordinate strategy returns: theta <- theta + unit * offsets.

    Attributes:
        sigma: step size of the generation, in the unit the space gives each tensor.
        utilities: one per member; from them the strategy computes the same offsets again.
        offsets: new mean minus old mean; None in a journal. They follow from all utilities so far.
        strategy_state: as of an `Update`.
    """

    generation: int
    sigma: float
    utilities: tuple[float, ...]
    offsets: Float32[np.ndarray, " dimension"] | None = field(default=None, compare=False)
    strategy_state: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SigmaTrial:
    """A sigma that calibration tried, in `strategy.sigma_unit`; its members' KL from the center.

    The divergence is in nats per token, and None while it is being measured. `is_kept`: an earlier
    run measured it.
    """

    sigma: float
    kl: float | None = None
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class SignalPower:
    """Mean square of an update's coefficients, and the part due to the choice of examples.

    Attributes:
        excess: by which the power of unshaped rewards exceeds its noise; None: not measured.
    """

    total: float
    noise: float
    excess: float | None = None

    @property
    def share(self) -> float:
        """Share of the total that is signal; below 0 where the noise is less than estimated."""
        return (self.total - self.noise) / self.total if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Signals:
    """How much signal the rewards of a generation carry; None where a value is not defined.

    Attributes:
        informative_examples: share of the examples on which members differ.
        informative_pairs: share of the antithetic pairs whose two halves differ in fitness.
        empty: share of the completions without any text besides special tokens.
        zero: whether the generation has no signal: its update changes nothing.
        zeros_in_a_row: number of generations without a signal, up to this one.
        agreement: cosine of the updates computed from the two halves of the examples.
        directions: effective number of directions of the update.
        signal_share: share of signal in the power of the members' differences; below 0 where the
            noise is less than estimated.
        walk: distance of theta from its start if the updates were a random walk, root mean square
            in the unit of sigma.
    """

    informative_examples: float | None
    informative_pairs: float | None
    empty: float
    zero: bool
    zeros_in_a_row: int
    agreement: float | None
    directions: float | None
    signal_share: float | None = None
    walk: float | None = None


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """A held-out result: mean of the task's metric with its standard error over examples.

    Attributes:
        generation: number of updates before it, 0 for the starting weights. These are the weights
            after generation `generation - 1`, which `export` and `replay` take.
        proportion: whether the metric of an example is 0 or 1, and the mean a proportion.
        values: the metric of each example; NaN: missing.
        rewards: the reward of each example, recorded beside `scorers`.
        scorers: of the same completions, by `held_out.scorers`; `metric` is the name of one.
        parts: mean of each part of the rubric, where it has several.
        at_k: where examples were sampled several times: pass@k and so on, by `metric`.
        behavior: of the completions, see `evaluation.behavior.behavior`.
        retained: scores of tasks and texts that training should keep, by name.
        forgot: those of them that lost more than their `max_drop`; of scores of a run directory.
    """

    generation: int
    metric: str
    mean: float
    standard_error: float
    n: int
    reward: float
    proportion: bool = False
    higher_is_better: bool = True
    values: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    scorers: tuple["HeldOutScore", ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict, hash=False)
    at_k: tuple["HeldOutScore", ...] = ()
    behavior: Mapping[str, float] = field(default_factory=dict, hash=False)
    retained: Mapping[str, "HeldOutScore"] = field(default_factory=dict, hash=False)
    forgot: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What the loop yields after each generation; `held_out` is set when an evaluation was due.

    Attributes:
        fitness: of the members; the mean rewards of the center's samples, where these are graded
            in the place of members.
        sigmas: sigma of each tensor, by name, where they differ; in `sigma_unit`.
        calibration: the sigmas that were tried before the generation, in order.
        strategy_metrics: values the strategy reports, by their names in generations.jsonl.
        budget: what the run has spent up to this generation, see `run.training`.
    """

    generation: int
    generations: int
    fitness: tuple[float, ...]
    utilities: tuple[float, ...]
    update: Update | MeanUpdate
    digest: str
    evaluation: Evaluation
    held_out: HeldOutScore | None
    timing: Mapping[str, float]
    sigmas: Mapping[str, float] = field(default_factory=dict)
    signals: Signals | None = None
    calibration: tuple[SigmaTrial, ...] = ()
    strategy_metrics: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
