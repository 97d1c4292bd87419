"""Whether an engine applies the noise of members: inference engines may ignore an adapter."""

from germline.protocols import Engine
from germline.types import Decoding, Example, GermlineError, SeedPerturbation

LARGE_SIGMA = 0.1
"""Noise that every dtype of serving shows, in any unit of sigma."""


def check_members_differ(engine: Engine, kind: str) -> None:
    """Compare the texts, then the log-probabilities, of two members with opposite large noise.

    Inference engines ignore adapters of layers that they do not support, some without an error.

    Args:
        engine: which evaluates members.
        kind: `engine.kind`, for the error.

    Raises:
        GermlineError: the members do not differ.
    """
    members = [SeedPerturbation(0, 0, 0, sign, LARGE_SIGMA) for sign in (1, -1)]
    example = Example(0, "1 + 1 =", "", chat=False)
    (one,), (other,) = engine.generate(members, [example], Decoding(max_new_tokens=8))
    if one.tokens != other.tokens:
        return
    try:
        first, second = engine.log_probabilities(members, [example], [[one], [one]])
    except (NotImplementedError, AttributeError):  # an engine that returns texts alone
        first = second = []
    if list(first) == list(second):
        raise GermlineError(
            f"engine.kind={kind}: two members with opposite noise of sigma={LARGE_SIGMA:g} write "
            "the same text with the same log-probabilities, so the engine does not apply the "
            "noise and no reward could differ: use engine.kind=inprocess, or another version of "
            "the inference engine"
        )
