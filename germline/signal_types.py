"""What a generation tells about itself: how much there was to learn, how far theta went.

Nouns only; `diagnosis` works the first out from what was played, `engines.update_size` the second
from the weights. `docs/signals.md` says how to read them. A share is between 0 and 1; None stands
for what does not exist in a generation (pairs without antithetic members, halves of one example,
differences of a member that is alone).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateSize:
    """How far one update moved the weights, against what their serving copy can show.

    Attributes:
        rms: root mean square of the step, over all numbers that are searched.
        in_roundings: root mean square of a tensor's step, in spacings of the serving dtype at its
            weights: of the middle tensor.
        least_in_roundings: the same, of the tensor where it is smallest.
        moved: share of the serving weights that are others than before.
        rank: effective rank of the step in the middle matrix; None where no rank is searched.
    """

    rms: float
    in_roundings: float
    least_in_roundings: float
    moved: float
    rank: float | None = None


@dataclass(frozen=True, slots=True)
class SigmaTrial:
    """One sigma that was tried while sigma was calibrated.

    Attributes:
        sigma: in `strategy.sigma_unit`.
        kl: KL divergence of the members from the center, in nats per token; None while it is being
            measured.
    """

    sigma: float
    kl: float | None = None


@dataclass(frozen=True, slots=True)
class SignalPower:
    """How much directions differ in what they are worth, and how much of that chance explains.

    Attributes:
        total: mean square of the coefficients of an update.
        noise: the part of it that the choice of examples alone would make.
    """

    total: float
    noise: float

    @property
    def share(self) -> float:
        """Share of the total that is signal; below 0 where chance made less than usual."""
        return (self.total - self.noise) / self.total if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Signals:
    """What there was to learn from a generation.

    Attributes:
        informative_examples: share of the examples on which members differ; None for one member.
        informative_pairs: share of the antithetic pairs whose two halves differ in fitness.
        tied: share of the members as fit as another one.
        empty: share of the completions without any text, special tokens left out.
        zero: whether nothing could be learned.
        zeros: generations of the run without a signal, up to this one.
        zeros_in_a_row: the same, since one had a signal last.
        agreement: cosine of the updates that the two halves of the examples give.
        signal_to_noise: what that says about the whole update, as a ratio of powers.
        directions: effective number of directions that the update goes in.
        signal_share: share of what separates the members that is no noise of the examples; below 0
            where chance made less than usual; None where batches have one example.
        walk: how far a random walk of the updates has carried the weights so far, root mean square
            in the unit of sigma; see `walk`.
        step: how far the update moved the weights, where an engine measured it.
    """

    informative_examples: float | None
    informative_pairs: float | None
    tied: float
    empty: float
    zero: bool
    zeros: int
    zeros_in_a_row: int
    agreement: float | None
    signal_to_noise: float | None
    directions: float | None
    signal_share: float | None = None
    step: UpdateSize | None = None
    walk: float | None = None
