"""The verdict of a judge: which replies state one, and which leave it open."""

import pytest

from germline.config.scorers import PairwiseJudgeSettings
from germline.scorers.judges import PairwiseJudge
from tests.judges import judging


def asked(answer):
    """Return what a judge that always answers so prefers."""
    with judging(lambda *_: answer) as server:
        judge = PairwiseJudge(PairwiseJudgeSettings(retry_timeout_s=0, url=server.url))
        return judge.ask(judge.request("?", "one", "two"))


VERDICTS = {
    # reply -> the completion that it prefers
    "[[A]]": "first",
    "[[ b ]]": "second",
    "The second one is wrong. [[A]]": "first",
    "[[A]] is right, as I said: [[A]].": "first",
    "Between [[A]] and [[B]]:\n[[B]]": "second",
    "Is it [[A]]?\n\n**Verdict: [[B]]**\n": "second",
    "Is it [[A]]?\n## Final answer: `[[b]]`.": "second",
    "<think>[[A]]? No, [[B]].</think>\nThe first one. [[A]]": "first",
    "[[A]] or [[B]]? It is [[B]].": None,
    "I choose [[A]].\nNot [[B]].": None,
    "[[A]]\nBut [[B]] has its merits, and [[A]] too.": None,
    "Answer with [[A]] or [[B]].": None,
    "The answer is A.": None,
    "[[C]]": None,
    "<think>It is [[A]], or": None,
}


@pytest.mark.parametrize("reply", VERDICTS)
def test_the_verdict_of_a_reply_is_one_that_it_states_without_doubt(reply):
    found = asked(reply)
    assert (found.preferred, found.text) == (VERDICTS[reply], reply)
    assert (found.failure is None) == (found.preferred is not None)


@pytest.mark.parametrize(
    ("text", "preferred"), [("[[A]] would be right if", None), ("Explained.\n[[A]]", "first")]
)
def test_a_reply_that_was_cut_has_a_verdict_on_its_last_line_only(text, preferred):
    choice = {"message": {"content": text}, "finish_reason": "length"}
    found = asked((200, {"choices": [choice]}))
    assert found.preferred == preferred
    assert preferred or "was cut at max_new_tokens" in str(found.failure)
