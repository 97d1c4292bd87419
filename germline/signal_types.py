"""Measurements of a generation: how much signal its rewards carry, and how far theta went.

`signal_metrics` computes the first from the rewards, `engines.update_size` the second from the
weights; `docs/tuning.md` explains how to read them. A share is between 0 and 1. A value is None
where it is not defined in a generation: for pairs without antithetic members, for halves of a
single example, for differences of a single member.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpdateSize:
    """Size of one update, compared with the resolution of the serving dtype.

    Attributes:
        rms: root mean square of the step, over all searched numbers.
        in_roundings: root mean square of a tensor's step, in spacings of the serving dtype at its
            weights: the median over tensors.
        least_in_roundings: the same, the minimum over tensors.
        moved: share of the serving weights that the update changed.
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
    """Power of the coefficients of an update, and the part of it that is noise.

    Attributes:
        total: mean square of the coefficients.
        noise: the part of it that is due to the choice of examples.
    """

    total: float
    noise: float

    @property
    def share(self) -> float:
        """Share of the total that is signal; below 0 where the noise is less than estimated."""
        return (self.total - self.noise) / self.total if self.total > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Signals:
    """How much signal the rewards of a generation carry.

    Attributes:
        informative_examples: share of the examples on which members differ; None for one member.
        informative_pairs: share of the antithetic pairs whose two halves differ in fitness.
        tied: share of the members as fit as another one.
        empty: share of the completions without any text besides special tokens.
        zero: whether the generation has no signal: its update changes nothing.
        zeros: number of generations without a signal, up to this one.
        zeros_in_a_row: the same, since the last generation with a signal.
        agreement: cosine of the updates computed from the two halves of the examples.
        signal_to_noise: ratio of powers of the whole update, computed from the agreement.
        directions: effective number of directions of the update.
        signal_share: share of signal in the power of the members' differences; below 0 where the
            noise is less than estimated; None where batches have one example.
        walk: distance of theta from its start if the updates were a random walk, root mean square
            in the unit of sigma; see `random_walk`.
        step: size of the update, where an engine measured it.
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
