"""What strategies, engines and tasks must be able to do: the contract between packages.

Arguments and results are data types of `types.py`, without torch; what a space must be able to do
is in `germline.spaces.base`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from germline.example import Transcript
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    Grade,
    MeanUpdate,
    Perturbation,
    Population,
    Rollout,
    SignalPower,
    Split,
    Update,
)

if TYPE_CHECKING:
    import torch


Answer = TypeVar("Answer")

Members = Sequence[Perturbation | None]
"""None is the center."""

Texts = Sequence[Sequence[Completion]]
"""Completions `[members][examples]`."""

Grader = Callable[[str, Example], Mapping[str, float]]
"""(completion text, example) -> rubric parts; picklable, because it runs in a worker process."""

EpisodeGrader = Callable[[Transcript, Example], Mapping[str, float] | str]
"""(replies so far, example) -> the environment's next message to the model, or the rubric parts of
an episode that has ended; picklable, likewise."""

Conversations = Sequence[Sequence[Example]]
"""How each member's conversations begin: `[members][rows]`; the rows of two members may differ."""

Reply = Callable[[Sequence[tuple[int, int]], Sequence[Completion]], Sequence[str | None]]
"""((member, row) of some conversations, their completions) -> the message that answers each; None
ends the conversation."""


@dataclass(frozen=True)
class ScoringGroup:
    """Members that score the same completions; `examples` has the prompt of each."""

    members: Members
    examples: Sequence[Example]
    completions: Sequence[Completion]


class Strategy(ABC):
    """Proposes the members of a generation and computes its update, without tensors.

    `ask` depends on run seed and generation, and in a strategy that adapts on the earlier updates.
    """

    @abstractmethod
    def ask(self, generation: int) -> Population:
        """Return the members of a generation."""

    @abstractmethod
    def tell(
        self,
        population: Population,
        utilities: Float[np.ndarray, "members"],
        fitness: Float[np.ndarray, "members"] | None = None,
        center: float | None = None,
        power: SignalPower | None = None,
    ) -> Update | MeanUpdate:
        """Turn utilities into the coefficients of the next step of theta, or into the step itself.

        Args:
            population: what `ask` returned.
            utilities: shaped fitness, one per member; 0 where the rewards are missing.
            fitness: of the members; NaN: missing.
            center: fitness of the center, where `population.evaluate_center` requests it.
            power: signal and noise of the generation; None where noise cannot be measured.
        """

    @abstractmethod
    def recall(self, updates: Sequence[Update | MeanUpdate]) -> Sequence[Update | MeanUpdate]:
        """Restore the state after the updates of a stopped run, from generation 0 on.

        Returns:
            The updates, with the offsets that a journal leaves out of a `MeanUpdate`.
        """

    def calibrate(  # noqa: B027 - most strategies are given their sigma
        self, generation: int, divergence: Callable[[Sequence[Perturbation]], float]
    ) -> None:
        """Choose a generation's sigma by trials; the loop calls this before each `ask`.

        `divergence` measures the KL divergence of members, in nats per token or NaN.
        """

    def metrics(self, update: Update | MeanUpdate) -> Mapping[str, Any]:
        """Return JSON values by name, which a row of the update's generation will have."""
        return {}


@runtime_checkable
class Shaping(Protocol):
    """How the loop turns rewards into utilities."""

    def __call__(
        self, evaluation: Evaluation, *, antithetic: bool, baseline: float | None = None
    ) -> Float[np.ndarray, "members"]:
        """Shape rewards (NaN: missing) into utilities (0: missing).

        Args:
            evaluation: of a population.
            antithetic: whether the members 2k and 2k + 1 are pairs.
            baseline: the fitness that gets utility 0; None: the mean of the members.
        """


@runtime_checkable
class MasterWeights(Protocol):
    """The fp32 masters, which a journal can rebuild; `dimension` numbers are searched."""

    dimension: int

    def apply(self, update: Update | MeanUpdate) -> None:
        """Change theta by one update; masters change nowhere else."""

    def digest(self, state: "Mapping[str, torch.Tensor] | None" = None) -> str:
        """Return the SHA-256 digest of masters, moments and factors of sigma, in this order.

        With a `state`, it is the digest after `load_state`.
        """

    def state(self) -> Mapping[str, "torch.Tensor"]:
        """Return searched masters, moments (`<name>.m`, `.v`) and scales (`.scale`); not copies."""

    def load_state(self, state: Mapping[str, "torch.Tensor"]) -> None:
        """Set the state to what `state` returned, bit for bit."""

    def scales(self) -> Mapping[str, float]:
        """Return the factor from the members' sigma to that of each searched tensor, by name."""


@runtime_checkable
class Engine(Protocol):
    """One copy of the weights that perturbs, generates and applies."""

    @property
    def weights(self) -> MasterWeights:
        """The masters, whose rounded copy is served."""

    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Generate a completion of each member for each example: `[members][examples]`."""

    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold conversations: generate a turn in each, ask for the replies, and go on with those.

        What has been read stays in the key-value cache: a turn reads the tokens of the reply only.
        A conversation without room for another turn gets a completion whose `finish` is `context`.
        `prompts` are the first messages, and `decoding.max_new_tokens` is the limit of one turn.
        """

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return the log-probability, at temperature 1, of each token of the completions."""

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update to the masters, and refresh the serving copy."""

    def refresh(self) -> None:
        """Set the serving copy to the rounded masters, as after loading a snapshot."""

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder that generates the same tokens; merge an adapter."""

    def save_adapter(self, folder: Path) -> None:
        """Write theta as a PEFT adapter; raise an error where the space trains none."""

    def close(self) -> None:
        """End what was started, such as a server; a running server gets its own weights back."""


EngineQuery = Callable[[Engine], Answer]
"""A read-only question to an engine: its class is its name, its fields are its arguments.

Both the question and its answer are picklable, as the engine may run in another process.
"""


@runtime_checkable
class TextScorer(Protocol):
    """An engine that returns the logits of its members for given texts."""

    special_ids: frozenset[int]
    """Such as the end of a sequence."""

    def read(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> "list[list[torch.Tensor]]":
        """Return the logits before each token: `[members][examples]`, `[tokens, vocabulary]`."""


@runtime_checkable
class Task(Protocol):
    """Examples and their grading.

    Attributes:
        name: short name, as in the config.
        grader: turns a completion into rubric parts, in a worker process.
        rubric: part name -> weight; the reward is the weighted sum, higher is better. Weight 0
            marks a metric. Parts that `floor` lacks are those of `task.scorers` and `task.kl_coef`.
        metric: the part held-out scores report.
        metric_higher_is_better: False for costs such as a length difference; for display only.
        floor: parts of a completion whose grading failed (timeout, crash): the lowest possible.
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
class GraderProtocol(Protocol):
    """A grader of texts, or of transcripts of episodes, that returns futures of grades."""

    max_turns: int | None
    """Limit of the model's turns in an episode; None: single completions."""

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Grade each text on its example."""


@runtime_checkable
class EpisodePlayer(Protocol):
    """Graders whose environments ask for the model's replies themselves, over HTTP."""

    def play(
        self,
        engine: Engine,
        members: Members,
        examples: Sequence[Example],
        decoding: Decoding,
        first_member: int,
    ) -> list[list[Rollout]]:
        """Play an episode of every member on every example: `[members][examples]`.

        Members are counted from 0 in the rollouts; `first_member` is the index of the first one in
        the population.
        """


@runtime_checkable
class EpisodeTask(Protocol):
    """A task of multi-turn episodes; its `grader` grades an episode of a single reply."""

    episode_grader: EpisodeGrader
    max_turns: int
    """Limit of the model's turns in an episode."""


@runtime_checkable
class VotableTask(Protocol):
    """A task that extracts the answer of a completion, so that members can vote on it."""

    def answer_of(self, text: str, example: Example) -> str | None:
        """Return the answer in a normal form, equal for equal answers; None without an answer."""
