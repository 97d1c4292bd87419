"""Runs with scorers: of held-out completions only, in rubrics, and services that fail."""

import json
import logging
import math
from functools import partial
from math import isnan

import pytest

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.record.metrics_rows import held_out_row, read_held_out_row
from germline.report.text_format import scorer_line
from germline.run import evaluate
from germline.run.build_parts import build_run_parts
from germline.run.task_check import check_task
from germline.scorers import http_service
from germline.types import GermlineError, HeldOutScore
from tests.command_line import command
from tests.hang_limit import HANG_S
from tests.scripted_server import listening, vowels
from tests.toy_runs import SETTINGS, finish, journal, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

GERMLINE_OWN = {"spaces": {"kind": "length", "start": 0, "end": 16}}


@pytest.fixture(autouse=True)
def _away_services_are_probed_at_once(monkeypatch):
    monkeypatch.setattr(http_service, "AWAY_S", 0.0)


def with_judge(url, *overrides, place="held_out", **section):
    section = {"kind": "germline", "url": url, "retry_timeout_s": 0} | section
    return settings(f"{place}.scorers.vowels={json.dumps(section)}", *overrides)


scored = partial(with_judge, place="task")


def rows(folder, name="held_out.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_held_out_scorer_is_recorded_and_changes_nothing_else(tmp_path):
    with listening(vowels) as server:
        path = finish(germline.train(with_judge(server.url), tmp_path / "judged"))
    plain = run(tmp_path / "plain")
    assert journal(path) == journal(plain)
    for row, other in zip(rows(path), rows(plain), strict=True):
        scorers, rewards = row.pop("scorers"), row.pop("rewards")
        assert row == other
        assert list(scorers) == ["vowels"]
        assert scorers["vowels"]["n"] == len(scorers["vowels"]["values"]) == len(rewards) == 5
        assert sum(rewards) / 5 == pytest.approx(row["reward"])
        assert scorers["vowels"]["mean"] == pytest.approx(sum(scorers["vowels"]["values"]) / 5)
    written = [one for row in rows(path) for one in row["completions"]]
    answered = [row for row in rows(path) if row["completions"]]
    values = [one for row in answered for one in row["scorers"]["vowels"]["values"]]
    assert values == [sum(c in "aeiou" for c in one["completion"]) for one in written]
    # No member was sent to the scorer: 3 scores of 5 examples, and the 4 texts before the run.
    assert sum(len(body["responses"]) for _, body in server.asked) == 4 + 3 * 5
    assert all("vowels" not in row["parts"] for row in rows(path, "rollouts.jsonl"))
    held = [row["held_out"] for row in rows(path, "generations.jsonl") if "held_out" in row]
    assert held
    assert all("values" not in one["scorers"]["vowels"] and "rewards" not in one for one in held)
    for one in (row.score for row in RunDirectory.open(path).held_out()):
        assert sum(one.values) / 5 == pytest.approx(one.mean)
        assert one.higher_is_better is False  # conciseness: difference of lengths


def test_a_recorded_row_is_read_as_it_was():
    nan = float("nan")
    one = HeldOutScore(*(3, "vowels", nan, nan, 0, nan), higher_is_better=False, values=(nan, 1.0))
    score = HeldOutScore(3, "exact", 0.5, 0.1, 2, 0.5, values=(1.0, 0.0))
    full = HeldOutScore(
        *(3, "exact", 0.5, 0.1, 2, 0.5), values=(1.0, 0.0), rewards=(1.0, nan), scorers=(one,)
    )
    for given in (score, full):
        row = json.loads(json.dumps(held_out_row(given)).replace("NaN", "null"))
        assert repr(read_held_out_row(row).score) == repr(given)
    assert {"rewards", "scorers"}.isdisjoint(held_out_row(score))


def test_a_scorer_that_fails_during_a_run_is_missing_and_stops_nothing(tmp_path, caplog):
    down = False

    def reply(path, body):
        return (503, "gone") if down else vowels(path, body)

    with listening(reply) as server, caplog.at_level(logging.WARNING):
        training = germline.train(with_judge(server.url), tmp_path / "run")
        generations = iter(training)
        next(generations)
        down = True
        list(generations)
    first, *_, last = (row.score for row in RunDirectory.open(tmp_path / "run").held_out())
    assert first.scorers[0].n == 5
    assert (last.scorers[0].n, isnan(last.scorers[0].mean)) == (0, True)
    assert scorer_line(last.scorers[0]) == "held-out scorer vowels: no score (n 0 of 5)"
    assert "held_out.scorers.vowels: 5 of 5 held-out completions have no score" in caplog.text
    assert journal(tmp_path / "run") == journal(run(tmp_path / "plain"))


@pytest.mark.parametrize(("place", "way"), [("held_out", ""), ("task", ".*correct its url")])
def test_a_scorer_that_is_down_at_the_start_stops_the_run_before_it_begins(place, way, tmp_path):
    said = rf"{place}\.scorers\.vowels \(kind=germline\) scored none .*cannot be reached{way}"
    with pytest.raises(GermlineError, match=said):
        germline.train(with_judge("http://127.0.0.1:9", place=place), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_be_given_a_judge(tmp_path):
    path = run(tmp_path / "run", "generations=2")
    with listening(vowels) as server:
        section = {"kind": "germline", "url": server.url}
        overrides = ["generations=4", f"held_out.scorers.vowels={json.dumps(section)}"]
        finish(germline.resume(path, overrides))
    found = [
        [one.metric for one in row.score.scorers] for row in RunDirectory.open(path).held_out()
    ]
    assert found == [[], [], ["vowels"]]
    assert journal(path) == journal(run(tmp_path / "plain"))
    away = section | {"url": "http://127.0.0.1:9", "retry_timeout_s": 0}
    with pytest.raises(GermlineError, match=r"vowels .* scored none"):
        germline.resume(path, ["generations=5", f"held_out.scorers.vowels={json.dumps(away)}"])
    assert RunDirectory.open(path).config.generations == 4


def test_eval_asks_the_scorers_too_and_prints_both(tmp_path):
    path = run(tmp_path / "run", "generations=1")
    words = ("eval", path, "--limit", "4", f"held_out.scorers={json.dumps(GERMLINE_OWN)}")
    done = command(*words)
    assert done.exit_code == 0, done.output
    assert "\tspaces" in done.stdout.splitlines()[0]
    (document,) = json.loads(command(*words, "--json").stdout)
    assert document["scorers"]["spaces"]["n"] == 4
    score, _ = evaluate(str(path), limit=4)
    assert (score.scorers, score.rewards) == ((), ())


def test_an_episode_is_scored_as_its_turns(tmp_path):
    with listening(lambda _, body: (200, {"rewards": [0.5] * len(body["responses"])})) as server:
        section = {"kind": "germline", "url": server.url}
        config = load_config(
            {
                "task": {"kind": "wordle", "max_new_tokens": 4},
                "engine": "toy",
                "generations": 1,
                "batch_size": 2,
                "strategy": {"population": 2, "sigma": 0.1, "learning_rate": 0.1},
                "held_out": {"examples": 2, "scorers": {"judge": section}},
                "record": {"tensorboard": False},
            }
        )
        path = finish(germline.train(config, tmp_path / "run"))
    sent = [text for _, body in server.asked[1:] for text in body["responses"]]
    assert all(text.startswith("model: ") and "(ended: " in text for text in sent)
    assert rows(path)[0]["scorers"]["judge"]["mean"] == 0.5


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
