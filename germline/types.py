"""The data types that travel between packages: frozen, picklable, free of torch.

A generation reads: a `Population` of members is played on a batch of `Example`s; every playing
leaves a `Completion` and a `Rollout`; all of them together are an `Evaluation`; what the strategy
makes of it is an `Update` (or a `MeanUpdate`, where members are coordinates). Only names and
numbers travel (seeds, coefficients, coordinates, text), never weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32

from germline.comm_bytes import CommBytes
from germline.signal_types import SigmaTrial, SignalPower, Signals

TensorKind = Literal[
    "linear", "embedding", "norm", "bias", "expert", "router", "adapter", "coordinates", "other"
]
Finish = Literal["eos", "stop", "length"]
Split = Literal["train", "test"]


class GermlineError(Exception):
    """What a user can mend: the message says what was asked, what was found and what to do."""


class EngineLost(GermlineError):
    """What an engine runs on is gone (its server, its connection), and may be back later.

    A fleet makes this good like a process that was killed; an engine alone stops the run.
    """


@dataclass(frozen=True, slots=True)
class SeedPerturbation:
    """A perturbation by name: theta + sign * sigma * noise(run_seed, generation, direction).

    Attributes:
        generation: whose noise it is; an earlier one than that of the population where a strategy
            uses its directions again.
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
    """A perturbation by value: theta + unit * offsets, over all searched numbers.

    Attributes:
        index: place in the population.
        offsets: how far it stands from the center, in the canonical order of the searched tensors
            and in the unit the space gives each of them.
    """

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
    """Return a member that must be named by a seed: what is drawn here has no coordinates.

    Raises:
        GermlineError: it is given by its coordinates.
    """
    if isinstance(member, SeedPerturbation):
        return member
    raise GermlineError(
        "members given by coordinates cannot be used where directions are drawn: "
        "strategy.kind=cma and sep_cma need a space that has coordinates, such as space.kind=full"
    )


@dataclass(frozen=True, slots=True)
class PromptVariant:
    """Discrete settings a member plays with; None: as the config says.

    Attributes:
        temperature: of its sampling; 0 is greedy.
        few_shot: solved training examples written before the prompt.
        template: the prompt, with `{prompt}` where the task's own goes.
    """

    temperature: float | None = None
    few_shot: int | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Population:
    """The members of one generation in order; antithetic ones 2k and 2k + 1 are a pair.

    Attributes:
        choices: what each member plays with, where that is searched too; a pair shares it.
        center: whether the strategy asks how fit the center is, on the same batch.
        baseline: the fitness that counts as neither good nor bad; None: the mean of the members.
    """

    generation: int
    members: tuple[Perturbation, ...]
    antithetic: bool
    evaluate_center: bool = False
    baseline: float | None = None
    prompt_variants: tuple[PromptVariant, ...] = ()

    def __len__(self) -> int:
        return len(self.members)

    def seed_perturbations(self) -> tuple[SeedPerturbation, ...]:
        """Return the members of a strategy that names directions.

        Raises:
            GermlineError: they are coordinates: another strategy asked for them.
        """
        return tuple(map(as_seed_perturbation, self.members))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One canonical Hugging Face parameter: tied tensors appear once, under their first name.

    Attributes:
        kind: the role of the tensor; `linear` is the weight of a linear layer inside a decoder
            block, or of an untied head; `adapter` is a part of a LoRA adapter beside one;
            `coordinates` move frozen matrices along fixed directions.
        layer: index of the decoder block it belongs to, or None outside the blocks.
        transposed: whether a linear weight is stored `[in, out]`, as GPT-2's Conv1D does, and not
            `[out, in]`.
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
        """How many numbers a linear layer writes and reads."""
        first, second = self.shape
        return (second, first) if self.transposed else (first, second)

    @property
    def adapter_names(self) -> tuple[str, str]:
        """Name the A and B of a LoRA adapter beside a linear layer; frozen, as they name noise."""
        module = self.name.removesuffix(".weight")
        return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


@dataclass(frozen=True, slots=True)
class Example:
    """One task item: the prompt as the task wrote it, and what its grader needs.

    Attributes:
        index: position in its split; also names the example's sampling noise.
        chat: whether the engine wraps the prompt in the model's chat template.
        answer: the gold completion (used by checks and displays, and by most graders).
        facts: whatever else the grader needs (numbers, target, ...).
    """

    index: int
    prompt: str
    answer: str
    chat: bool
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen, the same for every member of a generation (common random numbers).

    Attributes:
        temperature: 0 is greedy.
        top_p: smallest probability mass sampled from; 1 keeps every token.
        stop: strings that end a completion; they are not part of its text.
        noise_seed: run seed of the sampling noise.
        noise_round: generation of the sampling noise.
        noise_name: its stream, so that held-out scores do not share the luck of training.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    noise_seed: int = 0
    noise_generation: int = 0
    noise_stream: str = "train"


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote, without the prompt.

    Attributes:
        text: decoded tokens, special tokens dropped, cut before a stop string.
        tokens: ids as generated, the end-of-sequence token included.
    """

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one completion.

    Attributes:
        reward: NaN when it is missing for a reason the model did not cause.
        parts: unweighted values of the rubric, metrics (weight 0) included.
        failure: why the floor reward was given or the reward is missing; None when all went well.
    """

    reward: float
    parts: Mapping[str, float]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Rollout:
    """One playing of one example by one member."""

    member: int
    example: int
    completion: Completion
    grade: Grade


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Rewards of a population on a batch: `rewards[member, example]`, NaN when missing."""

    rewards: Float[np.ndarray, "members examples"]
    rollouts: tuple[Rollout, ...]
    tokens: int
    decode_seconds: float


@dataclass(frozen=True, slots=True)
class SigmaUpdate:
    """How an update changes the sigma of every tensor by what its own noise was worth.

    Attributes:
        coefficients: of each direction, for equation (1) of `spaces.sigma_units`.
        least: smallest sigma of a tensor, as a multiple of the update's sigma.
        most: largest one.
    """

    coefficients: tuple[float, ...]
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class Update:
    """What `tell` returns: theta <- theta + step(sum_k coefficients[k] * noise(direction k)).

    The coefficients carry utilities, signs and the 1/N of the population; see `strategies.nes`.

    Attributes:
        fitness: mean over the population, where the strategy goes by it: what `recall` needs to
            take up a stopped run. Applying an update does not look at it.
        success: share of members fitter than the center, where the strategy goes by that.
        noise_generation: whose noise the directions are, where it is not the update's own.
        stretch: how the sigmas of tensors change, where each tensor has its own.
        skipped: whether it leaves everything where it is, optimizer and decay included.
        told: fitness of each member (NaN: missing), where members are kept by it.
        choices: probability of every option of every discrete setting after this generation, where
            such settings are searched too; in the order of the config.
        power: how much members differed and how much of it was noise, where the learning rate
            goes by that.
        backpropagated: whether theta was moved along a gradient found by backpropagation, which
            seeds cannot repeat.
    """

    run_seed: int
    generation: int
    sigma: float
    learning_rate: float
    coefficients: tuple[float, ...]
    fitness: float | None = None
    success_rate: float | None = None
    noise_generation: int | None = None
    sigma_update: SigmaUpdate | None = None
    skipped: bool = False
    fitnesses: tuple[float, ...] = ()
    option_probabilities: tuple[tuple[float, ...], ...] = ()
    backpropagated: bool = False
    signal_power: SignalPower | None = None

    @property
    def has_no_signal(self) -> bool:
        """Whether its generation said nothing: no coefficient is not 0, and none was fitter."""
        stretched = self.sigma_update is not None and any(self.sigma_update.coefficients)
        return not (any(self.coefficients) or stretched or len(set(self.fitnesses)) > 1)

    def with_noise_generation(self) -> "Update":
        """Return it under the generation whose noise it is the sum of, as spaces draw it."""
        if self.noise_generation is None:
            return self
        return replace(self, generation=self.noise_generation, noise_generation=None)


@dataclass(frozen=True, slots=True)
class MeanUpdate:
    """What `tell` of a coordinate strategy returns: theta <- theta + unit * offsets.

    Attributes:
        sigma: step size of the generation, in the unit the space gives each tensor.
        utilities: what the strategy was told, one per member: a journal keeps these, and telling
            them again gives the offsets.
        offsets: new mean minus old mean, over all searched numbers; None as a journal holds it. Not
            compared, as they follow from what was told so far.
    """

    generation: int
    sigma: float
    utilities: tuple[float, ...]
    offsets: Float32[np.ndarray, " dimension"] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """A held-out result: mean of the task's metric with its standard error over examples.

    Attributes:
        proportion: whether the mean is a share of the examples, each of them right or wrong.
        higher_is_better: which way the metric is good; None: not recorded, by an older germline.
        values: the metric of each example, in their order, NaN where it is missing; empty where
            it was not recorded.
    """

    generation: int
    metric: str
    mean: float
    standard_error: float
    n: int
    reward: float
    proportion: bool = False
    higher_is_better: bool | None = None
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """What the loop yields after each generation; `held_out` is set when an evaluation was due.

    Attributes:
        signals: what there was to learn, and how far theta went.
        sigmas: of each tensor as it was played, where they differ; in `sigma_unit`, by name.
        traffic: what traveled, where engines are elsewhere.
        calibration: the sigmas that were tried before the generation, in order.
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
    traffic: CommBytes | None = None
    calibration: tuple[SigmaTrial, ...] = ()
