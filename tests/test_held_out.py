"""Scorers of held-out completions only: recorded beside the score, and never in the fitness."""

import json
import logging
from math import isnan

import pytest

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.record.metrics_rows import held_out_row, read_held_out_row
from germline.report.text_format import scorer_line
from germline.run import evaluate
from germline.scorers import http_service
from germline.types import GermlineError, HeldOutScore
from tests.command_line import command
from tests.scripted_server import listening, vowels
from tests.toy_runs import finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

GERMLINE_OWN = {"spaces": {"kind": "length", "start": 0, "end": 16}}


@pytest.fixture(autouse=True)
def _away_services_are_probed_at_once(monkeypatch):
    monkeypatch.setattr(http_service, "AWAY_S", 0.0)


def with_judge(url, *overrides, place="held_out", **section):
    section = {"kind": "germline", "url": url, "retry_timeout_s": 0} | section
    return settings(f"{place}.scorers.vowels={json.dumps(section)}", *overrides)


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


def test_a_scorer_that_is_down_at_the_start_stops_the_run_before_it_begins(tmp_path):
    with pytest.raises(
        GermlineError,
        match=r"held_out\.scorers\.vowels \(kind=germline\) scored none .*cannot be reached",
    ):
        germline.train(with_judge("http://127.0.0.1:9"), tmp_path / "run")
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
