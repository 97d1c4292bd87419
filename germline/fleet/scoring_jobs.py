"""Scoring given completions by many members, cut into microbatches that any engine can score.

The microbatches depend on the config alone, so 1 and n engines compute the same products.
"""

from collections.abc import Mapping, Sequence

from germline.config import MicrobatchSettings
from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.fleet.quorum import Place
from germline.protocols import Members
from germline.rollout import cut_microbatches
from germline.types import Completion, Example


def scoring_jobs(
    members: Members,
    examples: Sequence[Example],
    completions: Sequence[Completion],
    microbatch: MicrobatchSettings,
) -> dict[Place, LogProbabilitiesQuery]:
    """Cut members x completions into queries, by first member and first completion.

    Args:
        members: that score; None is the center.
        examples: the prompt of each completion.
        completions: the same for every member.
        microbatch: members x completions of one query.
    """
    jobs = {}
    for part in cut_microbatches(members, examples, microbatch):
        first = part.first_example
        written = completions[first : first + len(part.examples)]
        jobs[part.first_member, first] = LogProbabilitiesQuery(
            part.members, part.examples, [written] * len(part.members)
        )
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
