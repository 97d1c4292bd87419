"""The read-only questions that a fleet passes on to one of its engines, see `Fleet.query`.

A new question is one class here and the method of `Engine` or `MasterWeights` that answers it.

`scoring_jobs` cuts the scoring of given completions by many members into such questions: they
depend on the config alone, so 1 and n engines compute the same products.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from germline.config import MicrobatchSettings
from germline.fleet.quorum import Place
from germline.protocols import Engine, Members, ScoringGroup
from germline.rollout import cut_microbatches
from germline.types import Completion, Decoding, Example, SeedPerturbation

LARGE_SIGMA = 0.1
"""Noise that every serving dtype shows, in any unit of sigma."""


@dataclass(frozen=True)
class DimensionQuery:
    """How many numbers are searched."""

    def __call__(self, engine: Any) -> int:
        """Return their number, of anything with masters."""
        return int(engine.weights.dimension)


@dataclass(frozen=True)
class WeightsQuery:
    """How many weights a token is multiplied by: all but an embedding that is looked up alone."""

    def __call__(self, engine: Any) -> int:
        """Return their number; of weights without a list of tensors, that of the searched ones."""
        base = getattr(engine.weights, "base", None)
        if base is None:
            return int(engine.weights.dimension)
        looked_up = ("embedding", "non_text")
        used = (one for one in base.tensors if one.kind not in looked_up or one.aliases)
        return sum(math.prod(one.shape) for one in used)


@dataclass(frozen=True)
class ScalesQuery:
    """By how much the sigma of each searched tensor differs from that of its members."""

    def __call__(self, engine: Any) -> Mapping[str, float]:
        """Return the factor of each searched tensor, by name."""
        scales: Mapping[str, float] = engine.weights.scales()
        return scales


@dataclass(frozen=True)
class LogProbabilitiesQuery:
    """The log-probability, at temperature 1, of each token of completions `[members][examples]`."""

    members: Members
    examples: Sequence[Example]
    completions: Sequence[Sequence[Completion]]

    def __call__(self, engine: Engine) -> list[list[Sequence[float]]]:
        """Return one number per token, `[members][examples][tokens]`."""
        return engine.log_probabilities(self.members, self.examples, self.completions)


@dataclass(frozen=True)
class MembersDifferQuery:
    """Whether two members with opposite noise of `LARGE_SIGMA` write or score texts differently."""

    run_seed: int

    def __call__(self, engine: Engine) -> bool:
        """Compare short greedy texts, then the log-probabilities of one of them."""
        members = [SeedPerturbation(self.run_seed, 0, 0, sign, LARGE_SIGMA) for sign in (1, -1)]
        example = Example(0, "1 + 1 =", "", chat=False)
        plus, minus = engine.generate(members, [example], Decoding(max_new_tokens=8))
        if plus[0].tokens != minus[0].tokens:
            return True
        first, second = engine.log_probabilities(members, [example], [plus, plus])
        return [*first[0]] != [*second[0]]


def scoring_jobs(
    groups: Sequence[ScoringGroup], microbatch: MicrobatchSettings
) -> dict[Place, LogProbabilitiesQuery]:
    """Cut the members x completions of every group into queries, by first member and completion.

    Members are counted over all groups.
    """
    jobs = {}
    before = 0
    for group in groups:
        examples = [without_answer(example) for example in group.examples]
        for part in cut_microbatches(group.members, examples, microbatch):
            first = part.first_example
            written = group.completions[first : first + len(part.examples)]
            jobs[before + part.first_member, first] = LogProbabilitiesQuery(
                part.members, part.examples, [written] * len(part.members)
            )
        before += len(group.members)
    return jobs


def without_answer(example: Example) -> Example:
    """Leave out what only graders need."""
    return replace(example, answer="", facts={})


def joined_scores(
    scored: Mapping[Place, list[list[Sequence[float]]]],
) -> list[list[Sequence[float]]]:
    """Join the answers of all queries: `[members][completions][tokens]`."""
    rows: dict[int, list[Sequence[float]]] = {}
    for first_member, first_completion in sorted(scored):
        for member, row in enumerate(scored[first_member, first_completion], first_member):
            rows.setdefault(member, []).extend(row)
    return [rows[member] for member in sorted(rows)]
