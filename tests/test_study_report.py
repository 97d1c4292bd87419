"""What the runs of a study say: scores at budgets, differences between methods, verdicts."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from germline.studies import study_report
from germline.studies.study_report import front
from germline.studies.study_results import CellResult, MethodResult, TaskResult
from germline.types import HeldOutScore
from tests.toy_runs import run


def made_up(name: str, *ends: float, higher: bool = True) -> MethodResult:
    """Return a method whose seeds begin at 0.5 and end at these scores."""

    def of(generation: int, mean: float) -> HeldOutScore:
        values = (mean - 0.1, mean + 0.1)
        return HeldOutScore(
            generation, "right", mean, 0.1, 2, mean, higher_is_better=higher, values=values
        )

    runs: list[Any] = [
        SimpleNamespace(
            config=SimpleNamespace(seed=seed),
            metric="right",
            scores=[of(0, 0.5), of(1, end)],
            best=of(1, end),
            evaluation={"kl": {"per_token": 0.25 * seed}},
            behavior=SimpleNamespace(word="broken" if end < 0.5 else "fine"),
        )
        for seed, end in enumerate(ends)
    ]
    return MethodResult(name, runs, runs)


def task_of(*methods: MethodResult) -> TaskResult:
    return TaskResult("sums", None, methods)


def test_a_difference_is_shown_where_the_interval_over_seeds_excludes_zero() -> None:
    good = made_up("es", 0.90, 0.91, 0.92, 0.90, 0.91)
    level = made_up("rloo", 0.88, 0.95, 0.90, 0.87, 0.93)
    bad = made_up("grpo", 0.70, 0.72, 0.71, 0.69, 0.73)
    pair = task_of(good, bad).pairs[0]
    assert pair.is_shown
    assert pair.probability[0] == 1
    assert study_report._sentence(task_of(good, level, bad)) == (
        "sums: es ends better than grpo; no difference shown between es and rloo "
        "(right: es 0.908, rloo 0.906, grpo 0.71)."
    )
    (pair,) = task_of(good, level).pairs
    assert 0.4 < pair.probability[0] < 0.7
    low, high = pair.probability[1]
    assert low < 0.5 < high
    unclear = task_of(made_up("b", 0.9, 0.8), made_up("a", 0.1, 0.9))
    assert study_report._sentence(unclear) == (
        "sums: no difference shown between b and a (right: b 0.85, a 0.5; few run seeds: 2)."
    )
    (few,) = task_of(made_up("a", 0.1), made_up("b", 0.9)).pairs
    assert few.difference is None
    assert not few.is_shown
    assert math.isnan(few.probability[1][0])


def test_of_a_cost_the_lower_score_is_better() -> None:
    cost = made_up("es", 1.0, 2.0, higher=False)
    assert cost.signed_ends == [-1.0, -2.0]
    assert cost.evaluated("kl", "per_token") == 0.125
    assert cost.evaluated("at_k", "pass@1", "mean") is None


def test_the_cost_of_a_target_is_that_of_the_first_score_that_reaches_it(tmp_path: Path) -> None:
    one = CellResult(run(tmp_path / "run", "generations=1"))
    last = one.scores[-1]
    assert not last.higher_is_better
    means = [(0, 20.0), (10, 12.0), (20, 15.0), (30, 9.0)]
    vars(one)["curve"] = [({"rollouts": float(at)}, replace(last, mean=mean)) for at, mean in means]
    assert one.reached(12.0) == {"rollouts": 10.0}
    assert one.reached(10.0) == {"rollouts": 30.0}
    assert one.reached(8.9) is None


def with_kl(name: str, kl: float, *ends: float, higher: bool = True) -> MethodResult:
    method = made_up(name, *ends, higher=higher)
    for run_of_method in method.counted:
        vars(run_of_method).update(evaluation={"kl": {"per_token": kl}}, better="higher is better")
    return method


def test_a_method_is_on_the_front_unless_another_has_the_score_for_less_kl() -> None:
    near, best = with_kl("near", 0.1, 0.6, 0.7), with_kl("best", 0.4, 0.9, 0.9)
    far, level = with_kl("far", 0.5, 0.9, 0.8), with_kl("level", 0.1, 0.7, 0.6)
    unknown = made_up("unknown", 1.0)
    vars(unknown.counted[0]).update(evaluation={})
    sums = task_of(near, best, far, level, unknown)
    results: Any = SimpleNamespace(tasks=[sums], methods=[(sums, one) for one in sums.methods])
    table = front(results)
    assert [row[1::3] for row in table.rows] == [
        ("near", "on it"),
        ("best", "on it"),
        ("far", "dominated by best"),
        ("level", "on it"),  # equal in both
    ]
    cost = with_kl("cost", 0.5, 2.0, higher=False)
    assert with_kl("cheap", 0.4, 1.0, higher=False).dominates(cost)
    assert not with_kl("dear", 0.4, 3.0, higher=False).dominates(cost)
    alone: Any = SimpleNamespace(tasks=[task_of(near)], methods=[(task_of(near), near)])
    assert front(alone).rows == []


def test_verdicts_about_answers_are_counted() -> None:
    assert study_report._behavior(made_up("es", 0.6, 0.7)) == "fine"
    assert study_report._behavior(made_up("es", 0.1, 0.7, 0.2)) == "broken (2), fine (1)"
