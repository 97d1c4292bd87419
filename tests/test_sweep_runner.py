"""What a sweep does next: which rung, race or test, and whether a trial goes on."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from germline.studies import sweep_runner
from germline.types import HeldOutScore


def test_a_trial_that_collapsed_is_no_better_peer(monkeypatch) -> None:
    def trial(number: int, score: float | None, collapsed: object) -> Any:
        made = {"path": number, "sampler": "tpe", "mean": score, "has_collapsed": collapsed}
        first = score and HeldOutScore(1, "score", score, 0.1, 20, score)
        return SimpleNamespace(**made, runs=[first, "a raced seed"])

    known = [(9.0, True), (8.0, True), (3.0, False), (5.0, False), (None, False)]
    trials = [trial(number, *one) for number, one in enumerate(known)]
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    options = SimpleNamespace(budget=SimpleNamespace(limits={}))
    runner._sweep = SimpleNamespace(options=options, lock=nullcontext(), out=None, stops=[1, 2])
    found = SimpleNamespace(trials=trials)
    monkeypatch.setattr(sweep_runner, "SweepResults", lambda _out: found)
    monkeypatch.setattr(sweep_runner, "score_at", lambda run, _stop: run)
    monkeypatch.setattr(runner, "_affords", lambda *_: True)
    assert runner._halve(3, 1) is None
    trials[3].mean = 2.0
    reason = "rung 1 of 2: 1 of 3 other trials were better"
    assert runner._halve(3, 1) == ("pruned", reason)
    assert runner._halve(3, 2) is None


def test_a_trial_that_goes_on_is_judged_at_the_rung_that_its_run_was_trained_up_to(
    monkeypatch,
) -> None:
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    runner._sweep = SimpleNamespace(stops=[24, 72, 216], seeds=[0])
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(runner, "_train", lambda _path, _seeds, stop: steps.append(("train", stop)))
    monkeypatch.setattr(runner, "_halve", lambda _path, stop: steps.append(("halve", stop)))
    monkeypatch.setattr(runner, "_end", lambda *_: None)
    for budget, left in ((0, [24, 72, 216]), (24, [24, 72, 216]), (72, [72, 216]), (216, [216])):
        config = SimpleNamespace(budget=SimpleNamespace(rollouts=budget))
        # Killed where the run had reached the rung, and nothing was decided.
        runs = [SimpleNamespace(config=config)] if budget else []
        trial = SimpleNamespace(
            runs=runs, score_at=lambda stop, at=budget: 1.0 if stop <= at else None
        )
        monkeypatch.setattr(runner, "_trial", lambda _path, trial=trial: trial)
        steps.clear()
        runner._search(Path())
        assert steps == [(name, stop) for stop in left for name in ("train", "halve")]


@pytest.mark.parametrize(
    ("locked", "tests", "work"),
    [
        ([0], [1, 0], 1),  # another worker tests trial 0, and does not race it
        ([0], [0, 0], None),
        ([1], [2, 0], None),
        ([0], [1, 1], 1),  # the worker that tested trial 1 was killed
        ([0, 1], [1, 1], None),
    ],
)
def test_tests_do_not_wait_for_each_other(monkeypatch, locked, tests, work) -> None:
    trials = [
        SimpleNamespace(
            number=n,
            path=n,
            state="complete",
            spent={"rollouts": 216.0},
            tests=range(begun),
            test_scores=range(begun // 2),
        )
        for n, begun in enumerate(tests)
    ]
    options = SimpleNamespace(
        budget=SimpleNamespace(limits={}), searched={}, seeds=4, is_grid=False
    )
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    runner._sweep = SimpleNamespace(options=options, stops=[216], limit=216, out=0, test_seeds=[4])
    monkeypatch.setattr(sweep_runner, "SweepResults", lambda _out: SimpleNamespace(trials=trials))
    monkeypatch.setattr(sweep_runner, "is_locked", lambda path: path in locked)
    monkeypatch.setattr(sweep_runner, "race", lambda *_, **__: [(trials[0], 4)])
    monkeypatch.setattr(sweep_runner, "trials_to_test", lambda found: found.trials)
    runner._untested = set()
    monkeypatch.setattr(runner, "_begin", lambda *_: None)
    monkeypatch.setattr(runner, "_affords", lambda *_: False)
    found = runner._next_work()
    assert found == (None if work is None else (work, runner._test))
