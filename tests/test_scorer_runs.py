"""Runs with scorers: rubrics of rewards and scores, and services that fail during a run."""

import json
import math

import pytest

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.run.build_parts import build_run_parts
from germline.run.task_check import check_task
from germline.scorers import http_service
from germline.types import GermlineError
from tests.hang_limit import HANG_S
from tests.scripted_server import listening, vowels
from tests.toy_runs import SETTINGS, finish, journal, settings, stopped_after


@pytest.fixture(autouse=True)
def _away_services_are_probed_at_once(monkeypatch):
    monkeypatch.setattr(http_service, "AWAY_S", 0.0)


def scored(url, *overrides, **section):
    section = {"kind": "germline", "url": url, "retry_timeout_s": 0} | section
    return settings(f"task.scorers.vowels={json.dumps(section)}", *overrides)


def grades(config, texts):
    with build_run_parts(config) as parts:
        examples = [*parts.batch(0)] * len(texts)
        future = parts.graders.submit(texts, examples[: len(texts)])
        return future.result(timeout=HANG_S)


def test_a_score_is_a_weighted_part_beside_the_rewards_of_the_task():
    with listening(vowels) as server:
        alone = grades(settings(), ["aaa", "xyz"])
        both = grades(scored(server.url, weight=0.5), ["aaa", "xyz"])
    for plain, grade, value in zip(alone, both, (3.0, 0.0), strict=True):
        assert grade.parts == {**plain.parts, "vowels": value}
        assert grade.reward == plain.reward + 0.5 * value
        assert grade.failure is None


@pytest.mark.parametrize(
    ("weight", "more", "reward"),
    [(0.5, {}, 1.5), (0.0, {}, math.nan), (0.5, {"strip_thinking": True}, 0.5)],
    ids=["weighted", "shown", "without thinking"],
)
def test_a_scorer_rewards_rows_that_no_function_applies_to(tmp_path, weight, more, reward):
    file = tmp_path / "task.py"
    file.write_text(
        f"train = {[{'prompt': str(number)} for number in range(9)]}\n"
        "def reward(completions):\n    return [None]\n"
    )
    with listening(vowels) as server:
        scorer = {"kind": "germline", "url": server.url, "weight": weight}
        task = {"kind": str(file), "scorers": {"vowels": scorer}, **more}
        text = "<think>ee</think>o" if more else "aaa"
        (grade,) = grades(settings(f"task={json.dumps(task)}"), [text])
    assert grade.reward == pytest.approx(reward, nan_ok=True)


def test_a_missing_score_makes_the_reward_missing_unless_its_weight_is_0():
    with listening(lambda *_: (200, {"rewards": [None, 1.0]})) as server:
        lost, kept = grades(scored(server.url), ["a", "b"])
        reported, _ = grades(scored(server.url, weight=0), ["a", "b"])
    assert math.isnan(lost.reward)
    assert lost.failure.startswith("vowels: the response has None")
    assert not math.isnan(kept.reward)
    assert not math.isnan(reported.reward)
    assert math.isnan(reported.parts["vowels"])


def test_a_scorer_needs_a_name_that_no_reward_has():
    with pytest.raises(GermlineError, match=r"task\.scorers\.length: the task has a reward"):
        build_run_parts(settings("task.scorers.length={kind: germline, url: http://x}"))


def test_rows_without_answers_are_rewarded_by_scorers_alone(tmp_path):
    rows = "".join(json.dumps({"prompt": f"Say {number}"}) + "\n" for number in range(20))
    (tmp_path / "prompts.jsonl").write_text(rows)
    with listening(vowels) as server:
        config = scored(server.url, "generations=2")
        section = config.task.model_dump(include={"scorers", "stop", "temperature"})
        task = {"path": str(tmp_path / "prompts.jsonl"), "kind": "jsonl", "reward": {}, **section}
        training = germline.train(
            config.model_dump() | {"task": task | {"max_new_tokens": 8}}, tmp_path / "run"
        )
        finish(training)
        report = check_task(task, prompts=1)
    assert training.end is not None
    assert training.end.metric == "vowels"
    rollouts = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert {tuple(json.loads(row)["parts"]) for row in rollouts} == {("vowels",)}
    assert "no example has an `answer`" in report.findings[1].remark


def test_what_members_wrote_is_scored_in_few_requests(tmp_path):
    with listening(vowels) as server:
        config = scored(server.url, "microbatch={members: 6, examples: 4}", concurrency=1)
        with build_run_parts(config) as parts:
            parts.fleet.evaluate(parts.method.ask(0), parts.batch(0), parts.decoding)
    assert [len(body["responses"]) for _, body in server.asked] == [24]


def test_a_service_that_is_down_at_the_start_stops_the_run_before_it_begins(tmp_path):
    with pytest.raises(
        GermlineError,
        match=r"task\.scorers\.vowels \(kind=germline\) scored none .*cannot be reached"
        r".*; start its server, or correct its url",
    ):
        germline.train(scored("http://127.0.0.1:9"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_service_that_is_away_changes_no_bits_and_its_token_is_in_no_file(tmp_path, monkeypatch):
    """Away for a while, the run waits; gone, it stops and is resumed."""
    monkeypatch.setenv("REWARD_TOKEN", "very-secret")
    number, down = 0, False

    def sometimes(path, body):
        nonlocal number
        number += 1
        return (503, "restarting") if number % 5 else vowels(path, body)

    def reply(path, body):
        return (503, "gone") if down else vowels(path, body)

    with listening(sometimes) as server:
        config = scored(server.url, retry_timeout_s=HANG_S, concurrency=1)
        finish(germline.train(config, tmp_path / "one"))
    with listening(reply) as server:
        training = germline.train(scored(server.url, token_env="REWARD_TOKEN"), tmp_path / "two")
        generations = iter(training)
        next(generations)
        down = True
        with pytest.raises(GermlineError, match=r"100% of the rewards are missing.*vowels: .*503"):
            list(generations)
        down = False
        finish(germline.resume(tmp_path / "two"))
    assert journal(tmp_path / "one") == journal(tmp_path / "two")
    files = [path for path in (tmp_path / "two").rglob("*") if path.is_file()]
    assert files
    assert all(b"very-secret" not in path.read_bytes() for path in files)


def test_penalties_are_parts_of_the_reward():
    scorers = {
        "long": {"kind": "length", "start": 10, "end": 30},
        "repeated": {"kind": "repetition", "ngram": 2, "weight": -2},
    }
    texts = ["short", "x" * 20, "x" * 99, "a b a b a b"]
    plain = grades(settings(), texts)
    found = grades(settings(f"task.scorers={json.dumps(scorers)}"), texts)
    assert [grade.parts["long"] for grade in found] == [0.0, 0.5, 1.0, 0.05]
    assert [grade.parts["repeated"] for grade in found] == pytest.approx([0, 0, 0, 3 / 5])
    expected = [0.0, -0.5, -1.0, -0.05 - 2 * 3 / 5]
    differences = [one.reward - two.reward for one, two in zip(found, plain, strict=True)]
    assert differences == pytest.approx(expected)


@pytest.mark.usefixtures("graded_in_process")
def test_a_resumed_run_has_the_parts_of_its_reward_in_the_order_of_the_config(tmp_path):
    scorers = {
        "zz": {"kind": "length", "start": 0, "end": 17, "weight": -0.3},
        "mm": {"kind": "repetition", "ngram": 1, "weight": -0.3},
        "aa": {"kind": "length", "start": 1, "end": 11, "weight": -0.1},
        "bb": {"kind": "length", "start": 2, "end": 7, "weight": -0.07},
    }
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Say {n}"}}\n' for n in range(20)))
    task = {"kind": "jsonl", "path": str(prompts), "reward": {}, "scorers": scorers}
    decoding = {"max_new_tokens": 24, "temperature": 1.0}
    config = load_config({**SETTINGS, "task": {**task, **decoding}}, ("generations=6",))
    whole = RunDirectory.open(finish(germline.train(config, tmp_path / "whole")))
    stopped = stopped_after(germline.train(config, tmp_path / "stopped"), 2)
    resumed = RunDirectory.open(finish(germline.resume(stopped)))
    assert list(resumed.config.task.scorers) == [*scorers]
    assert {row.score.metric for row in resumed.held_out()} == {"zz"}
    assert journal(resumed.path) == journal(whole.path)
    again = finish(germline.train(whole.path / "run.json", tmp_path / "again"))
    assert journal(again) == journal(whole.path)
