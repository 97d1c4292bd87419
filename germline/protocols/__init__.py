"""The verbs: what a strategy, a space, an engine, a fleet, a task and a tracker must be able to do.

The whole contract between rooms is on this page, that of spaces in `spaces.py`. Everything
crossing it is a noun of `types.py`, except inside an engine, where a space hands over tensors
(typed here without importing torch).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from germline.comm_bytes import CommBytes
from germline.protocols.spaces import (
    AdapterSpace,
    BaseModel,
    CoordinateSpace,
    LowRankSpace,
    MatrixDirections,
    MemberAdapter,
    Space,
    Theta,
)
from germline.signal_types import SignalPower, UpdateSize
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    MeanUpdate,
    Perturbation,
    Population,
    Split,
    Update,
)

if TYPE_CHECKING:
    import torch

    from germline.record import JournalEntry

__all__ = [
    "AdapterSpace",
    "BaseModel",
    "CalibratedStrategy",
    "Closable",
    "CoordinateSpace",
    "Engine",
    "EngineQuery",
    "Fleet",
    "Grader",
    "HasMasters",
    "LowRankSpace",
    "MasterWeights",
    "MatrixDirections",
    "MemberAdapter",
    "Members",
    "Shaping",
    "Space",
    "Strategy",
    "Task",
    "TextScorer",
    "Texts",
    "Theta",
    "VotableTask",
]

Answer = TypeVar("Answer")
AnswerOut = TypeVar("AnswerOut", covariant=True)

Members = Sequence[Perturbation | None]
"""None is the center."""

Texts = Sequence[Sequence[Completion]]
"""Completions `[members][examples]`."""

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
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update | MeanUpdate:
        """Turn utilities into the coefficients of the next step of theta, or into the step itself.

        A strategy may go by the fitness of members (NaN: missing), by that of the center where
        `population.center` asks for it, and by `power`: None where noise cannot be told.
        """

    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Be shown all updates of a stopped run, and ask on as if it had told them itself.

        Returns the updates, with the offsets that a journal leaves out of moves.
        """


@runtime_checkable
class CalibratedStrategy(Protocol):
    """A strategy whose sigma is found by trying: the loop calls this before each `ask`."""

    def calibrate(
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Choose a generation's sigma by the KL divergence of members, in nats per token or NaN."""


@runtime_checkable
class MasterWeights(Protocol):
    """The fp32 masters: everything a journal can rebuild.

    Attributes:
        dimension: how many numbers are searched.
    """

    dimension: int

    def apply(self, update: Update | MeanUpdate) -> None:
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
    def weights(self) -> MasterWeights:
        """The masters behind what is served."""

    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Let every member (None: the center) answer every example: `[members][examples]`."""

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return the log-probability, at temperature 1, of each token of the completions."""

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update to the masters and refresh the serving copy; say how far they moved."""

    def refresh(self) -> None:
        """Make the serving copy the rounded masters again, after a snapshot was loaded."""

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder that gives the same tokens; an adapter is merged."""

    def save_adapter(self, folder: Path) -> None:
        """Write theta as a PEFT adapter; refused where it is not one."""


@runtime_checkable
class HasMasters(Protocol):
    """What holds masters, such as an engine."""

    @property
    def weights(self) -> MasterWeights:
        """The masters."""


@runtime_checkable
class EngineQuery(Protocol[AnswerOut]):
    """A read-only question to an engine: its class is its name, its fields are its arguments.

    Both the question and its answer are picklable, as the engine may run in another process.
    """

    def __call__(self, engine: Engine) -> AnswerOut:
        """Return the engine's answer."""

    def is_valid_result(self, answer: object) -> bool:
        """Whether an object is a possible answer: another one counts as the loss of the engine."""


@runtime_checkable
class TextScorer(Protocol):
    """An engine that can tell how likely its members find a text.

    Attributes:
        special_ids: tokens that are not part of what a text says, its end among them.
    """

    special_ids: frozenset[int]

    def read(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> "list[list[torch.Tensor]]":
        """Return the logits before each token: `[members][examples]`, `[tokens, vocabulary]`."""


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

    def evaluate_center(self, examples: Sequence[Example], decoding: Decoding) -> Evaluation:
        """Play the examples with the unperturbed weights and grade them: one row of rewards."""

    def query(self, query: "EngineQuery[Answer]") -> Answer:
        """Return the answer of one engine to a read-only question: all have the same weights."""

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Apply the update on every engine, and return what one of them measured of it."""

    def digest(self) -> str:
        """Return the digest all engines agree on."""

    def save_snapshot(self, folder: Path, generation: int, keep: int) -> None:
        """Write masters and moments as they are after `generation`; keep the newest `keep`."""

    def restore(
        self, entries: "Sequence[JournalEntry]", folder: Path | None, base_digest: str
    ) -> None:
        """Bring the base weights to the state after the last entry of a journal.

        Snapshots in the folder may save replaying; everything is verified by digest.
        """

    def traffic(self) -> CommBytes | None:
        """Return what traveled since this was last asked; None where nothing does."""

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
class VotableTask(Protocol):
    """A task that can say what answer a completion gives, so that members can vote on it."""

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return what two completions that say the same share; None where there is no answer."""
