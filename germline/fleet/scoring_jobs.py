"""Scoring given completions by many members, cut into microbatches that any engine can score.

The microbatches depend on the config alone, so 1 and n engines compute the same products.
"""

from collections.abc import Mapping, Sequence

from germline.config import MicrobatchSettings
from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.fleet.quorum import Place
from germline.protocols import ScoringGroup
from germline.rollout import cut_microbatches


def scoring_jobs(
    groups: Sequence[ScoringGroup], microbatch: MicrobatchSettings
) -> dict[Place, LogProbabilitiesQuery]:
    """Cut the members x completions of every group into queries, by first member and completion.

    Args:
        groups: that score; members are counted over all of them.
        microbatch: members x completions of one query.
    """
    jobs = {}
    before = 0
    for group in groups:
        for part in cut_microbatches(group.members, group.examples, microbatch):
            first = part.first_example
            written = group.completions[first : first + len(part.examples)]
            jobs[before + part.first_member, first] = LogProbabilitiesQuery(
                part.members, part.examples, [written] * len(part.members)
            )
        before += len(group.members)
    return jobs


def joined_scores(
    scored: Mapping[Place, list[list[Sequence[float]]]],
) -> list[list[Sequence[float]]]:
    """Join the answers of all queries: `[members][completions][tokens]`."""
    rows: dict[int, list[Sequence[float]]] = {}
    for first_member, first_completion in sorted(scored):
        for member, row in enumerate(scored[first_member, first_completion], first_member):
            rows.setdefault(member, []).extend(row)
    return [rows[member] for member in sorted(rows)]
