"""Scorers over HTTP: what each kind sends and reads, and responses that give no score."""

import threading
import time
from math import isnan
from typing import Any

import pytest

from germline.config import load_config
from germline.config.scorers import PairwiseJudgeSettings
from germline.registry import create
from germline.scorers import NotScoredError, scored_text
from germline.scorers.judges import PairwiseJudge, Reply, read_verdict
from germline.types import Example, GermlineError
from tests.hang_limit import HANG_S
from tests.judges import judging
from tests.scripted_server import listening

SUM = Example(0, "What is 1 + 2?", "3", chat=True)
CAPITAL = Example(1, "Of France?", "Paris", chat=True, context=(("user", "Name the capital."),))
ITEMS = [("three", SUM), ("Lyon {prompt}", CAPITAL)]


def scorer(url, **section):
    section = {"kind": "germline", "url": url} | section
    config = load_config({"task": {"kind": "arithmetic", "scorers": {"good": section}}})
    return create("scorer", config.task.scorers["good"], "task.scorers.good")


def scores(reply, items=ITEMS, **section):
    """Score some items with a service that always replies the same."""
    with listening(lambda *_: reply) as server:
        return scorer(server.url, **{"retry_timeout_s": 0} | section).score(items), server.asked


def values(found):
    return [score.value for score in found]


def test_the_service_gets_prompts_and_responses_and_a_text_or_messages_is_a_prompt():
    found, asked = scores((200, {"rewards": [0.5, -2], "costs": [0, 0]}), [*ITEMS])
    messages = [
        {"role": "user", "content": "Name the capital."},
        {"role": "user", "content": "Of France?"},
    ]
    body = {"prompts": ["What is 1 + 2?", messages], "responses": ["three", "Lyon {prompt}"]}
    assert asked == [("/score_batch", body)]
    assert values(found) == [0.5, -2.0]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("pku", "BEGINNING OF CONVERSATION: USER: What is 1 + 2? ASSISTANT:a?"),
        ("{response}!{x}", "a?!{x}"),
    ],
)
def test_a_template_says_how_prompt_and_completion_become_one_text(template, text):
    # No tokenizer reads half of a surrogate pair.
    assert scored_text(template, "a\ud800", SUM) == text


def judged(reply, finish="stop", **message):
    response = {"choices": [{"message": {"content": reply, **message}, "finish_reason": finish}]}
    found, asked = scores((200, response), items=[ITEMS[0]], kind="judge", model="j")
    return found[0], asked


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Helpful and right. [[7]]", 0.7),
        ("First [[2]], but on reflection:\n[[ 10 ]].", 1.0),
        ("[[7]], as I said: [[7.0]]", 0.7),
        ("<think>[[2]] or [[3]]?</think>It is right. [[4]]", 0.4),
        ([{"type": "thinking", "thinking": "[[1]]"}, {"type": "text", "text": "[[3]]"}], 0.3),
        ("[[0]]", 0.0),
        ("Mostly right.\n[[7/10]]", 0.7),
        (" 3/10 ", 0.3),
    ],
)
def test_the_grade_of_a_judge_becomes_a_score_from_0_to_1(reply, value):
    score, asked = judged(reply)
    assert score.value == value
    ((path, body),) = asked
    assert (path, body["model"], body["temperature"]) == ("/chat/completions", "j", 0.0)
    (message,) = body["messages"]
    assert "What is 1 + 2?" in message["content"]
    assert "\nthree\n" in message["content"]


@pytest.mark.parametrize(
    ("reply", "more", "reason"),
    [
        ("[[11]]", {}, "grade 11 is not from 0 to 10"),
        ("Good. [[4/5]]", {}, "grade '4/5' is out of 5, and grades are from 0 to 10"),
        ("[[7/10]] or [[8/10]]", {}, "mentions [[7/10]], [[8/10]]"),
        ("It is 7 of 10, I think.", {}, "may not follow the template): 'It is 7"),
        ("First [[2]], but then [[10]].", {}, "mentions [[2]], [[10]], and its last line is no"),
        ("I would give [[7]] if", {"finish": "length"}, "cut at max_new_tokens"),
        ("and so on " * 500, {"finish": "length"}, "was cut at max_new_tokens"),
        (None, {"refusal": "I cannot help with that."}, "refuses: 'I cannot help with that.'"),
        ("", {}, "gives no reply"),
        (None, {"finish": "length"}, "gives no reply, and was cut at max_new_tokens"),
    ],
)
def test_a_judge_without_a_usable_grade_gives_a_missing_score(reply, more, reason):
    score, _ = judged(reply, **more)
    assert isnan(score.value)
    assert reason in score.missing


def test_what_is_no_chat_completion_gives_a_missing_score():
    responses: list[Any] = [{}, [], {"choices": []}, {"choices": [{"message": None}]}, "hello"]
    for response in responses:
        ((score,), _) = scores((200, response), items=[ITEMS[0]], kind="judge", model="j")
        assert "no chat completion" in score.missing


@pytest.mark.parametrize("line", [" *" * 50_000 + "[[A]] x [[B]]", "a" * 50_000 + ":" * 50_000])
def test_a_long_last_line_is_read_at_once(line):
    began = time.perf_counter()
    with pytest.raises(NotScoredError):
        read_verdict(Reply(line, cut=False), "[AB]", str.upper, "[[A]] or [[B]]")
    assert time.perf_counter() - began < 5.0  # it took a minute


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "0.5", [1.0], True])
def test_a_value_that_is_no_number_is_missing_and_the_others_are_scored(value):
    found, _ = scores((200, {"rewards": [value, 1.5]}))
    assert isnan(found[0].value)
    assert repr(value) in found[0].missing
    assert found[1].value == 1.5


@pytest.mark.parametrize(
    "response",
    [
        {"rewards": [1.0]},
        {"rewards": 1.0},
        "hello",
        {"costs": [1.0, 2.0]},
        {"rewards": [1.0, 2.0], "rewards_missing": "no"},
    ],
)
def test_a_response_of_another_shape_is_no_score(response):
    with pytest.raises(NotScoredError, match="rewards"):
        scores((200, response))


def test_the_refusal_of_one_text_leaves_the_others_of_its_batch():
    def reply(_path, body):
        texts = body["responses"]
        return (
            (400, {"error": "too long"})
            if "long" in texts
            else (200, {"rewards": [1] * len(texts)})
        )

    items = [("a", SUM), ("long", SUM), ("b", SUM), ("c", SUM), ("d", SUM)]
    with listening(reply) as server:
        found = scorer(server.url).score(items)
    assert [isnan(score.value) for score in found] == [False, True, False, False, False]
    assert "too long" in found[1].missing


def test_a_refusal_that_concerns_every_text_is_not_tried_in_halves():
    with (
        listening(lambda *_: (401, {"error": "wrong token"})) as server,
        pytest.raises(NotScoredError, match=r"refused \(401\): wrong token"),
    ):
        scorer(server.url).score(ITEMS)
    assert len(server.asked) == 1


def test_a_service_that_is_away_is_asked_again():
    replies = iter(
        [*((status, "starting") for status in (503, 408, 529)), (200, {"rewards": [1, 2]})]
    )
    with listening(lambda *_: next(replies)) as server:
        assert values(scorer(server.url).score(ITEMS)) == [1, 2]
    assert len(server.asked) == 4


def test_a_request_that_gets_no_answer_in_time_is_repeated_or_names_the_setting():
    released, replies = threading.Event(), iter([HANG_S, HANG_S])

    def reply(*_):
        released.wait(next(replies, 0))
        return 200, {"rewards": [1, 2]}

    with listening(reply) as server:
        hurried = scorer(server.url, timeout_s=0.1, retry_timeout_s=0)
        too_late = r"no answer within 0\.1 s.*task\.scorers\.good\.timeout_s"
        with pytest.raises(NotScoredError, match=too_late):
            hurried.score(ITEMS)
        asked = scorer(server.url, timeout_s=0.5)
        assert values(asked.score(ITEMS)) == [1, 2]
        released.set()


def test_the_token_comes_from_the_environment_and_is_sent(monkeypatch):
    monkeypatch.setenv("REWARD_TOKEN", "secret")
    asked = scorer("http://localhost:1", token_env="REWARD_TOKEN")
    assert asked._connection.headers == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(asked._connection)


@pytest.mark.parametrize("status", [401, 403])
def test_a_judge_that_wants_a_token_names_its_setting(status):
    with (
        listening(lambda *_: (status, {"error": "no token"})) as server,
        pytest.raises(GermlineError, match=r"no token.*judge\.token_env"),
    ):
        PairwiseJudge(PairwiseJudgeSettings(url=server.url))


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
