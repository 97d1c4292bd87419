"""The verbs: what a strategy, a space, an engine, a fleet, a task and a tracker must be able to do.

The whole contract between rooms is on this page. Everything crossing it is a noun of `types.py`,
except inside an engine, where a space hands over tensors (typed here without importing torch).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from germline.signals import UpdateSize
from germline.traffic import Traffic
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    GenerationRecord,
    Move,
    Perturbation,
    Population,
    Seeded,
    Split,
    TensorInfo,
    Update,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from germline.record import Entry

Grader = Callable[[str, Example], Mapping[str, float]]
"""(completion text, example) -> rubric parts; picklable, as it runs in a worker process."""


@runtime_checkable
class Shaping(Protocol):
    """How rewards become utilities: visible in the loop, not hidden in the strategy."""

    def __call__(
        self, evaluation: Evaluation, *, antithetic: bool, baseline: float | None = None
    ) -> Float[np.ndarray, "members"]:
        """Shape rewards (NaN: missing) into utilities (0: missing); 2k and 2k + 1 may be pairs.

        A baseline is the fitness of utility 0; without one it is the mean of the members.
        """


@runtime_checkable
class Strategy(Protocol):
    """Where to look next: names and numbers only.

    `ask` depends on (run seed, generation) alone, and, in a strategy that adapts, on what was told.
    """

    def ask(self, generation: int) -> Population:
        """Propose the members of a generation."""

    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        centre: float | None = None,
    ) -> Update | Move:
        """Turn utilities into the coefficients of the next step of theta, or into the step itself.

        A strategy that adapts to how fit the members are asks for their fitness (NaN: missing);
        that of the centre is given where `population.centre` asks for it.
        """

    def recall(self, updates: Sequence[Update | Move]) -> Sequence[Update | Move]:
        """Be shown all updates of a stopped run, and ask on as if it had told them itself.

        Returns the updates, with the offsets that a journal leaves out of moves.
        """


@runtime_checkable
class Space(Protocol):
    """Which numbers are searched, and how a direction changes each tensor."""

    def select(self, tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
        """Keep the tensors that are searched, in the order given."""

    def gradient(
        self, update: Update, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Sum coefficients times noise over directions, in a fixed order, as fp32.

        It is computed where it is wanted: on the device, which is the CPU unless told.
        """


@runtime_checkable
class DenseSpace(Space, Protocol):
    """A space whose members change whole tensors: served one member after another, in place."""

    def noise(
        self, member: Seeded, tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Draw the unit noise of a member's direction (without sign and sigma), as fp32."""

    def write_perturbed(
        self, member: Seeded, tensor: TensorInfo, scale: float, center: "Tensor", out: "Tensor"
    ) -> None:
        """Write center + scale * noise into a serving tensor: fp32 multiply, add, then round."""


@runtime_checkable
class LowRankSpace(Space, Protocol):
    """A space whose members are low-rank corrections: a population is served in one batch."""

    rank: int

    def factors(
        self, members: Sequence[Seeded], tensor: TensorInfo
    ) -> tuple["torch.Tensor", "torch.Tensor"]:
        """Draw A `[members, rows, rank]` and B `[members, columns, rank]`.

        A B^T is the unit noise, in the layout of the stored weight.
        """

    def sides(
        self, members: Sequence[Seeded], wanted: Sequence[tuple[TensorInfo, int]]
    ) -> "torch.Tensor":
        """Draw the A (side 0) or B (side 1) of many tensors, `[members, sum of side x rank]`.

        What `factors` draws, each `[side, rank]`, one after another.
        """


def _weight_units(_name: str, _tensor: "torch.Tensor") -> float:
    return 1.0


@dataclass(frozen=True)
class Base:
    """The model on which an adapter or coordinates are begun.

    Attributes:
        source: the folder or Hugging Face id it was loaded from.
        tensors: what it consists of.
        digest: computes the digest of its fp32 weights.
        weights: those, by canonical name.
        unit: measures a tensor of a name: 1, mean |W| or std W, as `strategy.sigma_unit` says.
    """

    source: str
    tensors: tuple[TensorInfo, ...]
    digest: Callable[[], str]
    weights: "Mapping[str, torch.Tensor]" = field(default_factory=dict)
    unit: "Callable[[str, torch.Tensor], float]" = _weight_units


@runtime_checkable
class AdapterSpace(Space, Protocol):
    """A space whose theta is a LoRA adapter beside frozen weights: a population in one batch.

    A linear layer `m.weight` is served as W + scale * B A, with theta `m.lora_A.weight`
    `[rank, in]` and `m.lora_B.weight` `[out, rank]`; members move A and B by dense noise.
    """

    rank: int
    scale: float

    def begin(self, base: Base) -> "Mapping[TensorInfo, torch.Tensor]":
        """Return the starting adapter, as fp32 on the CPU, in canonical order."""

    def noises(
        self, members: Sequence[Seeded], tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`."""

    def noises_of(
        self, members: Sequence[Seeded], tensors: Sequence[TensorInfo]
    ) -> "Mapping[str, torch.Tensor]":
        """Draw the `noises` of many tensors at once, on the CPU, by name."""


class Directions(NamedTuple):
    """How coordinates z move a frozen matrix M `[out, in]`: it is served as M + A diag(z) B^T.

    Attributes:
        coordinates: canonical name of z.
        a: `[out, k]`, fp32.
        b: `[in, k]`, fp32.
    """

    coordinates: str
    a: "torch.Tensor"
    b: "torch.Tensor"


@runtime_checkable
class CoordinateSpace(Space, Protocol):
    """A space whose theta is coordinates of fixed directions: a population in one batch.

    The matrices they move are frozen: weights of linear layers, or A and B of a given adapter,
    which is served as W + scale * B A. All members share the directions and differ in the
    coordinates.
    """

    scale: float
    matrices: tuple[TensorInfo, ...]

    def begin(self, base: Base) -> "Mapping[TensorInfo, torch.Tensor]":
        """Return the given adapter, if any, and then the coordinates, all 0: fp32 on the CPU."""

    def directions(self, matrix: TensorInfo) -> Directions:
        """Return the directions of one of `matrices`, on the CPU."""

    def unit(self, coordinates: TensorInfo) -> float:
        """Return what sigma and learning rate of some coordinates are multiples of."""

    def noises(
        self, members: Sequence[Seeded], tensor: TensorInfo, device: "torch.device | None" = None
    ) -> "torch.Tensor":
        """Draw the unit noise of the members' directions, fp32 `[members, *shape]`."""


@runtime_checkable
class Weights(Protocol):
    """The fp32 masters: everything a journal can rebuild.

    Attributes:
        dimension: how many numbers are searched.
    """

    dimension: int

    def apply(self, update: Update | Move) -> None:
        """Move theta by one update; the only place where masters change."""

    def digest(self) -> str:
        """Return the SHA-256 digest of masters and optimizer moments in canonical order."""

    def state(self) -> Mapping[str, "torch.Tensor"]:
        """Return searched masters, moments (`<name>.m`, `.v`) and scales (`.scale`); not copies."""

    def load_state(self, state: Mapping[str, "torch.Tensor"]) -> None:
        """Take over what `state` returned, bit for bit."""

    def scales(self) -> Mapping[str, float]:
        """Return by how much each searched tensor's sigma differs from that of its members."""


@runtime_checkable
class Engine(Protocol):
    """One copy of the weights that perturbs, generates and applies."""

    @property
    def weights(self) -> Weights:
        """The masters behind what is served."""

    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Let every member (None: the centre) answer every example: `[members][examples]`."""

    def apply(self, update: Update | Move) -> UpdateSize | None:
        """Apply the update to the masters and refresh the serving copy; say how far they moved."""

    def refresh(self) -> None:
        """Make the serving copy the rounded masters again, after a snapshot was loaded."""

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder that gives the same tokens; an adapter is merged."""

    def save_adapter(self, folder: Path) -> None:
        """Write theta as a PEFT adapter; refused where it is not one."""


@runtime_checkable
class Reader(Protocol):
    """An engine that can tell how likely its members find a text.

    Attributes:
        special_ids: tokens that are not part of what a text says, its end among them.
    """

    special_ids: frozenset[int]

    def read(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        completions: Sequence[Sequence[Completion]],
    ) -> "list[list[torch.Tensor]]":
        """Let every member (None: the centre) read texts after the examples' prompts.

        Completions are `[members][examples]`, and so are the logits returned, each `[tokens,
        vocabulary]`: those each token was chosen by, had the member written the text.
        """


@runtime_checkable
class Closable(Protocol):
    """An engine that started something which must be ended."""

    def close(self) -> None:
        """End it."""


@runtime_checkable
class Fleet(Protocol):
    """Engines that move together."""

    def evaluate(
        self, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluation:
        """Play the batch with every member and grade it."""

    def evaluate_centre(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play the examples with the unperturbed weights and grade them: one row of rewards."""

    def apply(self, update: Update | Move) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""

    def scales(self) -> Mapping[str, float]:
        """Return by how much each searched tensor's sigma differs from that of its members."""

    def dimension(self) -> int:
        """Return how many numbers are searched."""

    def digest(self) -> str:
        """Return the digest all engines agree on."""

    def save_snapshot(self, folder: Path, generation: int, keep: int) -> None:
        """Write masters and moments as they are after `generation`; keep the newest `keep`."""

    def restore(self, entries: "Sequence[Entry]", folder: Path | None, base_digest: str) -> None:
        """Bring the base weights to the state after the last entry of a journal.

        Snapshots in the folder may save replaying; everything is verified by digest.
        """

    def traffic(self) -> Traffic | None:
        """Return what travelled since this was last asked; None where nothing does."""

    def close(self) -> None:
        """End whatever runs elsewhere."""


@runtime_checkable
class Task(Protocol):
    """What to play and how it is scored.

    Attributes:
        name: short name, as in the config.
        grader: turns a completion into rubric parts, in a worker process.
        rubric: part name -> weight; the reward is the weighted sum, higher is better. Weight 0
            marks a metric.
        metric: the part held-out scores report.
        metric_higher_is_better: False for costs such as a length difference; for display only.
        floor: parts earned by a completion whose grading failed (timeout, crash): the worst the
            model can do.
        max_new_tokens: default length limit of a completion.
        stop: default stop strings.
    """

    name: str
    grader: Grader
    rubric: Mapping[str, float]
    metric: str
    metric_higher_is_better: bool
    floor: Mapping[str, float]
    max_new_tokens: int
    stop: tuple[str, ...]

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""


@runtime_checkable
class Answers(Protocol):
    """A task that can say what answer a completion gives, so that members can vote on it."""

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return what two completions that say the same share; None where there is no answer."""


@runtime_checkable
class Tracker(Protocol):
    """Something that watches a run: TensorBoard, a live view, ..."""

    def generation(self, record: GenerationRecord) -> None:
        """Take in one finished generation."""

    def close(self) -> None:
        """Flush and release."""
