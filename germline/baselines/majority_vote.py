"""Majority votes over completions: what several members answer to one example becomes one answer.

Two completions count as the same answer where the task says so (`protocols.VotableTask`), and
otherwise where their plain texts agree (`tasks.normalize_answer`). A completion without an answer
abstains. Of answers with equally many votes, the one of the best member wins, members being given
best first.

Deviation from the published code of RandOpt (arXiv 2603.12228): what is scored is the whole
completion of the best member among those that gave the winning answer, not the answer taken out of
it. So any reward can be voted on, and a vote earns what one completion earns.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from germline.protocols import Task, VotableTask
from germline.tasks.normalize_answer import normalize_answer
from germline.types import Example, Rollout

Answer = Callable[[str, Example], str | None]
"""(completion text, example) -> what is voted on; None abstains."""


def answer_function(task: Task) -> Answer:
    """Return what completions of a task are compared by."""
    return (
        task.answer_of
        if isinstance(task, VotableTask)
        else lambda text, example: normalize_answer(text)
    )


def majority_rollout(rollouts: Sequence[Rollout], answer: Answer, example: Example) -> Rollout:
    """Return the rollout that stands for the majority.

    Args:
        rollouts: of one example, by the members that vote, best member first.
        answer: what they are compared by.
        example: what they answer.
    """
    votes = [answer(rollout.completion.text, example) for rollout in rollouts]
    # Counter keeps the order of first votes, and `most_common` is stable: best member first.
    ranked = Counter(vote for vote in votes if vote is not None).most_common(1)
    return rollouts[votes.index(ranked[0][0])] if ranked else rollouts[0]
