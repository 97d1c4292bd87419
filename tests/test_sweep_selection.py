"""How trials of a sweep are ranked, stopped, raced, tested and summed up, on made-up scores."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from germline.cli.studies import _line
from germline.config import load_config
from germline.record.atomic_files import read_json, write_json
from germline.studies import sweep_runner
from germline.studies.sweep_results import NO_BEST, SweepResults, SweepTrial
from germline.studies.sweep_selection import (
    collapse_of,
    halving,
    is_clearly_worse,
    is_silent,
    kl_from_start,
    race,
    rungs_of,
    trials_to_test,
)
from germline.types import HeldOutScore


def faked(number: int, *scores: float, sampler: str = "tpe", spread: float = 1.0) -> SweepTrial:
    """A complete trial with a run of 20 held-out examples for each score."""
    examples = spread * np.linspace(-1, 1, 20)
    runs: list[Any] = [
        SimpleNamespace(
            config=SimpleNamespace(seed=seed),
            scores=[
                HeldOutScore(n, "score", end, 0.1, 20, end, values=tuple((end + examples).tolist()))
                for n, end in ((0, one - 100), (9, one))
            ],
            has_ended=True,
            peak_memory_mb={},
            evaluation={},
            run=SimpleNamespace(spent={"rollouts": 10, "tokens": 10 + number}),
            total=lambda _name: 0,
        )
        for seed, one in enumerate(scores)
    ]
    return SweepTrial(number, {}, runs, "complete", "", sampler, Path())


def faked_results(*trials: SweepTrial) -> SweepResults:
    made = SweepResults.__new__(SweepResults)
    made.facts = {"objectives": ["score"], "samplers": ["tpe"]}
    made.trials = [*trials]
    return made


def test_scores_are_shrunk_by_the_noise_and_the_race_adds_seeds() -> None:
    found = faked_results(faked(0, 1.0), faked(1, 2.0), faked(2, 6.0))
    assert found.variances[1:] == pytest.approx((0.01, 7 - 0.01))
    found = faked_results(faked(0, 1.0, 3.0), faked(1, 7.0, 9.0))
    assert found.variances == pytest.approx((5, 2, 18 - 2 / 2))
    found.variances = (4.0, 4.0, 1.0)
    assert found.shrunk(faked(0, 6.0)) == pytest.approx(4 + 2 / 5)
    assert found.shrunk(faked(0, 5.0, 7.0, 6.0, 6.0)) == pytest.approx(4 + 2 / 2)
    # A lucky trial of one seed falls behind one that four seeds confirm.
    lucky, sure = faked(0, 5.2), faked(1, 5.0, 4.2, 5.8, 5.0)
    found = faked_results(lucky, sure, faked(2, 4.0, 5.2), faked(3, 4.5, 3.5))
    assert found.variances[1] == pytest.approx((3 * 0.4267 + 0.72 + 0.5) / 5, abs=1e-3)
    assert next(one.number for one in found.ranked) == 1
    racing = {one.number: seeds for one, seeds in race(found, 4)}
    assert racing == {0: 2}
    # Those that are worse on nearly every example are left out.
    found = faked_results(faked(0, 5.0, 5.1), faked(1, 5.05, 5.0, spread=-1.0), faked(2, 1.0, 1.0))
    assert is_clearly_worse(found.trials[2], found.trials[0])
    assert not is_clearly_worse(found.trials[0], found.trials[2])
    assert {one.number: seeds for one, seeds in race(found, 4)} == {0: 4, 1: 4}
    assert [*race(found, 2)] == []


def test_a_trial_that_ends_no_better_than_it_began_is_not_recommended() -> None:
    level, worse, better = faked(0, 9.0), faked(1, 5.0, 5.0), faked(2, 1.0)
    for trial, start in ((level, 9.0), (worse, 6.0), (better, 0.5)):
        for run in trial.runs:
            run.scores[0] = replace(run.scores[0], mean=start)
    assert faked_results(level, worse, better).best is better
    found = faked_results(level, worse)
    assert found.best is None
    assert NO_BEST in found.summary()
    (said,) = faked_results().summary()  # of a sweep that has just begun
    assert said.startswith("0 trials")


@pytest.mark.parametrize(
    ("setting", "ends"),
    [("strategy.sigma=0.1", True), ("strategy.sigma=auto", False), ("method=zo_grpo", True)],
)
def test_a_trial_without_a_signal_goes_on_while_its_sigma_may_grow(
    setting: str, ends: bool
) -> None:
    config = load_config({}, [setting])
    run: Any = SimpleNamespace(rows=[{"zero_signal": True}] * 2, config=config)
    assert is_silent(run) == ends
    run.rows[-1] = {"zero_signal": False}
    assert not is_silent(run)


def test_the_race_has_two_trials_at_least_and_six_at_most() -> None:
    assert [*race(faked_results(faked(0, 5.0)), 4)] == []
    equal = faked_results(*(faked(number, 5.0) for number in range(8)))
    assert [one.number for one, _ in race(equal, 4)] == [0, 1, 2, 3, 4, 5]


def test_a_run_that_is_training_on_does_not_count_and_collapses_are_counted_apart() -> None:
    trial = faked(0, 1.0, 5.0)
    run: Any = trial.runs[1]
    run.has_ended = False
    assert trial.signed_scores == {0: 1.0}
    broken = replace(faked(1, 2.0), state="collapsed", reason="broken")
    running = replace(faked(2, 2.0), state="running")
    summary = faked_results(faked(0, 1.0), broken, running).summary()
    assert summary[0] == "3 trials, 30 rollouts: 1 complete, 1 collapsed, 1 stopped"


def test_trials_are_paired_by_run_seed_and_a_lower_cost_is_better() -> None:
    lucky = faked(0, 5.05, 9.0)  # its second seed says nothing about a trial without that seed
    assert not is_clearly_worse(faked(1, 5.0, spread=-1.0), lucky)
    assert is_clearly_worse(faked(1, 1.0, 20.0, spread=-1.0), faked(0, 5.05))
    cheap, dear = faked(0, 1.0), faked(1, 3.0)
    for one in (cheap, dear):
        run: Any = one.runs[0]
        run.scores[-1] = replace(run.scores[-1], higher_is_better=False)
    assert is_clearly_worse(dear, cheap)
    assert not is_clearly_worse(cheap, dear)
    assert [one.number for one in faked_results(dear, cheap).ranked] == [0, 1]


@pytest.mark.parametrize(
    ("code", "gain", "ends"),
    [
        ("broken_answers", 3.0, True),
        ("walk", 3.0, False),
        ("walk", 0.0, True),
        ("flat", 0.0, False),
    ],
)
def test_a_walk_to_the_edge_is_no_collapse_where_the_score_is_better(code, gain, ends) -> None:
    run: Any = SimpleNamespace(
        scores=[faked(0, one).runs[0].scores[-1] for one in (1.0, 1.0 + gain)],
        findings=[SimpleNamespace(code=code, sentence="it broke")],
        rows=[],
        config=load_config({}),
    )
    assert collapse_of(run) == ("it broke" if ends else "")


@pytest.mark.parametrize(
    ("row", "kl", "of"),
    [
        ({"parts": {"kl": 0.3}, "kl": 0.2}, 0.2, "the completions"),
        ({"parts": {"kl": 0.3}}, 0.3, "the completions"),
        ({"signals": {"walk": 0.06}}, 0.18, "noise as long as the walk"),
        ({"signals": {"walk": None}}, math.nan, "noise as long as the walk"),
    ],
)
def test_a_run_far_from_its_start_has_collapsed_unless_its_score_is_better(row, kl, of) -> None:
    first = {"calibration": [{"sigma": 0.02, "kl": 0.02}]}
    run: Any = SimpleNamespace(findings=[], rows=[first, row], config=load_config({}))
    assert kl_from_start(run)[0] == pytest.approx(kl, nan_ok=True)
    for gain, ends in ((3.0, False), (0.0, not math.isnan(kl))):
        run.scores = [faked(0, one).runs[0].scores[-1] for one in (1.0, 1.0 + gain)]
        said = f"the KL divergence of {of} from the start is {kl:g} nats per token"
        assert collapse_of(run) == (said if ends else "")
    run.config = load_config({}, ["task.kl_coef=0", "task.kl_per=completion"])
    run.rows = [{"parts": {"kl": 30.0}}]  # in nats per completion
    assert math.isnan(kl_from_start(run)[0])


def test_a_difference_within_the_noise_of_run_seeds_is_not_clear() -> None:
    best, other = faked(0, 5.0, 3.0), faked(1, 4.0, 2.0, spread=1.1)
    assert is_clearly_worse(other, best)
    assert not is_clearly_worse(other, best, 2.0)
    # The gap is 1, and the bound over two seeds 1.96 sqrt(variance): .88 and 1.07.
    assert is_clearly_worse(other, best, 0.2)
    assert not is_clearly_worse(other, best, 0.3)
    assert faked_results(best, other).seed_variance == pytest.approx(2.0)
    assert {one.number for one, _ in race(faked_results(best, other), 4)} == {0, 1}
    assert faked_results(faked(0, 5.0)).seed_variance is None


def test_a_trial_goes_on_among_the_best_third() -> None:
    assert halving(1.0, []) == ""
    assert halving(1.0, [2.0]) == "1 of 1 other trials were better"
    assert halving(5.0, [6.0, 1.0, 2.0, 3.0, 4.0]) == ""
    assert halving(5.0, [6.0, 7.0, 2.0, 3.0, 4.0]) == "2 of 5 other trials were better"
    assert rungs_of(900, 10) == [100, 300, 900]
    assert rungs_of(900, 60) == [300, 900]


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_the_summary_says_optimism_and_regret(higher_is_better: bool) -> None:
    sign = 1 if higher_is_better else -1

    def made(number: int, score: float, again: float = 0.0, unseen: float | None = None) -> Any:
        trial = faked(number, sign * score, sign * again)
        for run in trial.runs:
            faked_run: Any = run
            faked_run.scores[-1] = replace(faked_run.scores[-1], higher_is_better=higher_is_better)
            faked_run.evaluation = {} if unseen is None else {"mean": sign * unseen}
        *runs, test = trial.runs
        return replace(trial, runs=runs, tests=[test] if again else [])

    six, five, four = (f"{sign * one:g}" for one in (6, 5, 4))
    again = f"trial 0 scored {six} in the search, {five} with new run seeds (the search is +1"
    found = faked_results(made(0, 6.0, 5.0), made(1, 2.0, 2.0))
    assert found.summary()[1] == f"{again} optimistic)"
    assert found.summary()[0].endswith("; tests took 20 more")
    assert "(the search is not optimistic)" in faked_results(made(0, 6.0, 7.0)).summary()[1]
    found = faked_results(made(0, 6.0, 5.0, 4.0), made(1, 2.0, 2.0, 4.5))
    assert f"{four} on unseen rows; the best of 2 tests is 0.5" in found.summary()[1]
    assert f"test of trial 0 (tpe) : complete, score {five}" in _line(found.trials[0], "complete")
    assert f"trial 0 (tpe) : complete, score {six}" in _line(found.trials[0], "")
    assert faked_results(made(0, 6.0), made(1, 2.0, 2.0)).summary()[1].startswith("tpe")
    # Every trial of a better score has more tokens per rollout.
    found = faked_results(made(1, 1.0), made(2, 3.0), made(3, 2.0))
    found.facts["objectives"] = ["score", "tokens"]
    assert [one.number for one in found.front] == [2, 1]
    assert found.objectives(found.trials[0], 5.0) == [5.0, -1.1]
    worst = [min(one.runs[0].scores[0].mean for one in found.trials), -1.3]
    assert found.told(replace(found.trials[0], state="failed")) == worst


def test_the_best_of_each_sampler_is_tested() -> None:
    trials = [faked(number, 9.0 - number) for number in range(5)]
    assert [one.number for one in trials_to_test(faked_results(*trials))] == [0, 1, 2]
    trials.append(faked(5, 0.0, sampler="random"))
    assert [one.number for one in trials_to_test(faked_results(*trials))] == [0, 1, 2, 5]
    found = faked_results(*trials)
    found.facts["objectives"] = ["score", "tokens"]  # trial 0 is the best in both
    assert [one.number for one in trials_to_test(found)] == [0]


def test_a_trial_that_collapsed_is_no_better_peer(monkeypatch) -> None:
    def trial(number: int, score: float | None, state: str) -> Any:
        made = {"path": number, "sampler": "tpe", "mean": score, "state": state}
        first = score and ("a run", HeldOutScore(1, "score", score, 0.1, 20, score))
        return SimpleNamespace(**made, at=lambda _stop: [first, "a raced seed"] if first else [])

    known: list[tuple[float | None, str]] = [(9.0, "collapsed"), (8.0, "collapsed")]
    known += [(one, "running") for one in (3.0, 5.0, None)]
    trials = [trial(number, *one) for number, one in enumerate(known)]
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    options = SimpleNamespace(budget=SimpleNamespace(limits={}))
    runner._sweep = SimpleNamespace(options=options, out=None, stops=[1, 2])
    found = SimpleNamespace(trials=trials, by_sampler={"tpe": trials})
    monkeypatch.setattr(sweep_runner, "SweepResults", lambda _out: found)
    monkeypatch.setattr(runner, "_affords", lambda *_: True)
    assert runner._halve(3, 1) is None
    trials[3].mean = 2.0
    reason = "rung 1 of 2: 1 of 3 other trials were better"
    assert runner._halve(3, 1) == ("pruned", reason)
    assert runner._halve(3, 2) is None


def test_a_trial_that_goes_on_is_judged_at_the_rung_that_its_run_was_trained_up_to(monkeypatch):
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    runner._sweep = SimpleNamespace(stops=[24, 72, 216], seeds=[0, 1])
    steps: list[tuple[str, int]] = []
    monkeypatch.setattr(runner, "_train", lambda _path, _seeds, stop: steps.append(("train", stop)))
    monkeypatch.setattr(runner, "_halve", lambda _path, stop: steps.append(("halve", stop)))
    monkeypatch.setattr(runner, "_end", lambda *_: None)
    for budget, left in ((0, [24, 72, 216]), (24, [24, 72, 216]), (72, [72, 216]), (216, [216])):
        config = SimpleNamespace(budget=SimpleNamespace(rollouts=budget))
        # Killed where the run had reached the rung, and nothing was decided.
        runs = [SimpleNamespace(config=config)] if budget else []
        trial = SimpleNamespace(seeds=1, runs=runs, is_open=True)
        monkeypatch.setattr(runner, "_trial", lambda _path, trial=trial: trial)
        steps.clear()
        runner._search(Path())
        assert steps == [(name, stop) for stop in left for name in ("train", "halve")]
    trial.is_open = False  # another process has ended it since the trials were read
    steps.clear()
    runner._search(Path())
    assert steps == []


@pytest.mark.parametrize(("limit", "seeds"), [(29, [1, 1]), (30, [2, 1]), (40, [2, 2])])
def test_the_race_gives_run_seeds_within_the_budget(tmp_path, monkeypatch, limit, seeds) -> None:
    for number in range(2):
        (tmp_path / f"{number}").mkdir()
        write_json(tmp_path / f"{number}/trial.json", {"seeds": 1})
    found = faked_results(*(replace(faked(n, 5.0), path=tmp_path / f"{n}") for n in range(2)))
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    options = SimpleNamespace(seeds=4, budget=SimpleNamespace(limits={"rollouts": limit}))
    runner._sweep = SimpleNamespace(options=options, limit=10, stops=[10])  # 10 are spent by each
    assert runner._race(found, []) is False  # they are tested by other processes
    assert runner._race(found, found.trials) == (2 in seeds)
    assert [read_json(one.path / "trial.json")["seeds"] for one in found.trials] == seeds
    raced = [replace(one, seeds=given) for one, given in zip(found.trials, seeds, strict=True)]
    assert [one.is_open for one in raced] == [given == 2 for given in seeds]
    # What the race is to spend is reserved.
    monkeypatch.setattr(SweepTrial, "at", lambda *_: ["a score"])
    assert runner._affords(faked_results(*raced), {"rollouts": limit}, 1) == (2 not in seeds)


@pytest.mark.parametrize("is_affordable", [True, False])
def test_a_raced_trial_is_trained_while_the_budget_lasts(tmp_path, monkeypatch, is_affordable):
    file = tmp_path / "trial.json"
    write_json(file, {"seeds": 2})
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    options = SimpleNamespace(seeds=4, searched={}, budget=SimpleNamespace(limits={}))
    runner._sweep = SimpleNamespace(options=options, limit=10, stops=[10], out=0, test_seeds=[])

    def read(_out: object) -> SweepResults:
        return faked_results(replace(faked(0, 5.0), path=tmp_path, seeds=read_json(file)["seeds"]))

    monkeypatch.setattr(sweep_runner, "SweepResults", read)
    monkeypatch.setattr(runner, "_begin", lambda *_: None)
    monkeypatch.setattr(runner, "_affords", lambda *_: is_affordable)
    assert runner._next_work() == ((tmp_path, runner._search) if is_affordable else None)
    assert read_json(file) == {"seeds": 1 + is_affordable}


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
    same = {"state": "complete", "is_open": False, "spent": {"rollouts": 216.0}}
    ended = [SimpleNamespace(counted=range(begun // 2)) for begun in tests]
    trials = [
        SimpleNamespace(**same, number=n, path=n, tests=range(begun), tested=ended[n])
        for n, begun in enumerate(tests)
    ]
    options = SimpleNamespace(budget=SimpleNamespace(limits={}), searched={}, seeds=4)
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    runner._sweep = SimpleNamespace(options=options, stops=[216], limit=216, out=0, test_seeds=[4])
    found = SimpleNamespace(trials=trials, complete=trials)
    monkeypatch.setattr(sweep_runner, "SweepResults", lambda _out: found)
    monkeypatch.setattr(sweep_runner, "is_locked", lambda path: path in locked)
    monkeypatch.setattr(sweep_runner, "race", lambda *_, **__: [(trials[0], 4)])
    monkeypatch.setattr(sweep_runner, "trials_to_test", lambda found: found.trials)
    runner._untested = set()
    monkeypatch.setattr(runner, "_begin", lambda *_: None)
    monkeypatch.setattr(runner, "_affords", lambda *_: False)
    found = runner._next_work()
    assert found == (None if work is None else (work, runner._test))
