"""Majority votes over completions: the answers of several members to one example become one answer.

Two completions count as the same answer where the task says so (`protocols.VotableTask`), and
otherwise where their plain texts agree (`normalize_answer`). A completion without an answer
abstains. Of answers with equally many votes, the one of the best member wins, members being given
best first.

Deviation from the published code of RandOpt (arXiv 2603.12228): what is scored is the whole
completion of the best member among those that gave the winning answer, not the extracted answer. So
a vote works with any reward, and its reward is that of one completion.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from germline.graders.answer_match import normalize_answer
from germline.protocols import Task, VotableTask
from germline.types import Example, Rollout

Answer = Callable[[str, Example], str | None]
"""(completion text, example) -> the answer that is voted on; None abstains."""


def answer_function(task: Task) -> Answer:
    """Return the function that extracts the answer from a completion of a task."""
    return (
        task.answer_of
        if isinstance(task, VotableTask)
        else lambda text, example: normalize_answer(text)
    )


def majority_rollout(rollouts: Sequence[Rollout], answer: Answer, example: Example) -> Rollout:
    """Return the rollout of the best member among those that gave the majority's answer.

    Args:
        rollouts: the voting members' rollouts of one example, best member first.
        answer: extracts the answer of a completion.
        example: the example.
    """
    votes = [answer(rollout.completion.text, example) for rollout in rollouts]
    # Counter keeps the order of first votes, and `most_common` is stable: best member first.
    ranked = Counter(vote for vote in votes if vote is not None).most_common(1)
    return rollouts[votes.index(ranked[0][0])] if ranked else rollouts[0]
