"""The commands that a run suggests: they can be pasted, and fit the state of the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from germline.config import load_config
from germline.record import RunDirectory
from germline.report.run_facts import next_commands
from germline.run.weights import find_generation
from tests.synthetic_runs import BATCH, DIGEST, record, score


def made(folder: Path, generations: int = 1, **settings: Any) -> RunDirectory:
    run = RunDirectory.create(folder, load_config({"generations": 1, **settings}), DIGEST, 1)
    for generation in range(generations):
        run.write(record(generation), BATCH)
    return run


def words(run: RunDirectory) -> list[str]:
    return [command.split()[1] for command in next_commands(run)]


def test_a_run_is_exported_trained_on_or_resumed_as_its_state_allows(tmp_path: Path) -> None:
    run = made(tmp_path / "my run")
    assert next_commands(run) == [
        f"germline export '{run.path}' --out my-model",
        f"germline resume '{run.path}' generations=2",
        f"germline report '{run.path}'",
    ]
    begun = made(tmp_path / "begun", generations=0)
    assert next_commands(begun)[0] == f"germline resume {begun.path}"
    sigma = {"kind": "linear", "start": 0.01, "end": 0.002}  # ends with the generations
    assert words(made(tmp_path / "schedule", strategy={"sigma": sigma})) == ["export", "report"]
    # Toy weights have no file format.
    assert words(made(tmp_path / "toy", engine="toy")) == ["resume", "report"]


@pytest.mark.parametrize(("last", "best"), [(0.6, " --generation best"), (0.75, "")])
def test_the_best_generation_is_exported_where_it_is_not_the_last(
    tmp_path: Path, last: float, best: str
) -> None:
    run = made(tmp_path / "run", generations=10)
    for generation, mean in ((0, 0.5), (5, 0.75), (10, last)):
        run.write_held_out(score(generation, mean), [], BATCH)
    assert next_commands(run)[0] == f"germline export {run.path}{best} --out my-model"


def test_weights_that_forgot_too_much_are_not_exported_by_default(tmp_path: Path) -> None:
    kept = {"facts": {"task": {"kind": "arithmetic"}, "max_drop": 0.1}}
    run = made(tmp_path / "run", generations=10, retained=kept)
    for generation, mean, facts in ((0, 0.5, 0.9), (5, 0.6, 0.85), (10, 0.9, 0.7)):
        found = replace(score(generation, mean), retained={"facts": score(generation, facts)})
        run.write_held_out(found, [], BATCH)
    assert "--generation best" in next_commands(run)[0]
    assert find_generation(run, "best") == 4


def test_a_run_named_by_a_dot_has_commands_that_work_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path / "run")
    monkeypatch.chdir(run.path)
    assert next_commands(RunDirectory.open(Path())) == next_commands(run)
