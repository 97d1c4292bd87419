"""Runs that differ only in the update rule share what they generate before their first update."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from germline.fleet import LocalFleet
from germline.record import RunDirectory
from germline.run import evaluation_cache
from germline.run.build_parts import build_run_parts
from germline.types import Evaluation
from tests.toy_runs import journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

ROLLOUTS = 24  # of a generation: six members, four examples


def shared(folder: Path) -> list[int]:
    return [row.get("shared_rollouts", 0) for row in RunDirectory.open(folder).generations()]


def without_time(folder: Path) -> list[dict[str, object]]:
    names = ("fitness", "rollouts", "tokens", "signals", "failures")
    rows = RunDirectory.open(folder).generations()
    spent = ("rollouts", "tokens", "forward_tokens")
    return [{one: row[one] for one in names} | {s: row["budget"][s] for s in spent} for row in rows]


def test_the_first_generation_is_generated_once_and_the_journal_is_the_same(tmp_path) -> None:
    folder = f"record.shared={tmp_path / 'shared'}"
    assert shared(run(tmp_path / "first", folder)) == [0] * 4
    rule = ("strategy.learning_rate=0.5", "shaping=centered_ranks", "strategy.optimizer=adam")
    taken, alone = run(tmp_path / "taken", *rule, folder), run(tmp_path / "alone", *rule)
    assert shared(taken) == [ROLLOUTS, 0, 0, 0]
    assert journal(taken) == journal(alone)
    assert journal(taken) != journal(tmp_path / "first")
    assert without_time(taken) == without_time(alone)
    starts = [RunDirectory.open(one).held_out()[0].score for one in (taken, alone)]
    assert starts[0] == starts[1]
    files = [*(tmp_path / "shared").iterdir()]
    assert len(files) == 2  # the held-out score of the start, and generation 0
    for other in ("strategy.sigma=0.2", "seed=1", "task.temperature=0.9", "batch_size=3"):
        assert shared(run(tmp_path / other, folder, other, "generations=1")) == [0]


def test_damaged_files_are_generated_again(tmp_path) -> None:
    folder = f"record.shared={tmp_path / 'shared'}"
    first = run(tmp_path / "first", folder)
    for file in (tmp_path / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    again = run(tmp_path / "again", folder)
    assert shared(again) == [0] * 4
    assert journal(again) == journal(first)
    assert shared(run(tmp_path / "third", folder)) == [ROLLOUTS, 0, 0, 0]


def test_an_evaluation_that_lost_a_reward_is_not_shared(tmp_path, monkeypatch):
    folder = f"record.shared={tmp_path / 'shared'}"
    evaluate = LocalFleet._evaluate_members

    def losing(self, *asked):
        rewards = (found := evaluate(self, *asked)).rewards.copy()
        rewards[0, 0] = math.nan
        return replace(found, rewards=rewards)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFleet, "_evaluate_members", losing)
        run(tmp_path / "lost", folder, "generations=1")
    again, alone = run(tmp_path / "again", folder), run(tmp_path / "alone")
    assert shared(again) == [0] * 4
    assert journal(again) == journal(alone)


GPU = SimpleNamespace(is_available=lambda: True, get_device_name=lambda: "another GPU")


@pytest.mark.parametrize(
    ("name", "other"),
    [("code_digest", lambda: "newer"), ("torch", SimpleNamespace(cuda=GPU))],
    ids=["version", "GPU"],
)
def test_nothing_of_another_version_or_gpu_is_shared(name, other, tmp_path, monkeypatch):
    folder = f"record.shared={tmp_path / 'shared'}"
    run(tmp_path / "older", folder, "generations=1")
    monkeypatch.setattr(evaluation_cache, name, other)
    assert shared(run(tmp_path / "newer", folder, "generations=1")) == [0]


def test_what_another_task_grades_is_not_shared() -> None:
    asked: list[object] = []

    def recorded(make: Callable[[], Evaluation], what: object) -> Evaluation:
        asked.append(what)
        return make()

    with build_run_parts(settings()) as parts:
        parts.fleet.shared = recorded
        for graders in (None, parts.graders):
            parts.fleet.evaluate_center(parts.batch(0), parts.decoding, graders=graders)
    assert len(asked) == 1
