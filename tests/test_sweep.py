"""Sweeps: trials are ordinary runs within a budget, continued, raced and tested."""

import json
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import germline
from germline.config import load_config
from germline.config.config_files import as_yaml
from germline.record import RunDirectory
from germline.record.early_stopping import amounts
from germline.record.run_paths import acquire_lock, is_locked
from germline.studies import sweep_runner
from germline.studies.run_processes import STOPPED
from germline.studies.run_seeds import overrides_to_resume
from germline.studies.sweep import Sweep
from germline.studies.sweep_report import SweepReport
from germline.studies.sweep_results import SweepResults, SweepTrial
from germline.studies.sweep_samplers import Samplers
from germline.studies.sweep_space import overrides_of
from germline.types import GermlineError
from tests.command_line import command
from tests.hang_limit import HANG_S
from tests.run_commands import run_commands_here
from tests.toy_runs import SETTINGS, finish, journal

pytestmark = pytest.mark.usefixtures("graded_in_process")

SPACE: dict[str, Any] = {
    "strategy.learning_rate": {"log": [0.01, 1.0]},
    "strategy.population": [4, 6],
}
TRIAL = 216
"""Rollouts of a trial: 9 generations of 6 members and 4 examples; its rungs are 72 and 216."""

QUICK = ("sweep.seeds=1", "sweep.test_seeds=0")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sweep_runner, "POLL_S", 0.01)
    monkeypatch.setattr(SweepTrial, "is_better", True)  # toy models improve by chance alone
    (tmp_path / "toy.yaml").write_text(as_yaml(SETTINGS | {"generations": 9}))
    (tmp_path / "space.yaml").write_text(as_yaml(SPACE))
    return tmp_path / "toy.yaml"


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    monkeypatch.setattr("germline.run.training.write_pages", lambda _: None)  # nobody reads them
    return run_commands_here(monkeypatch)


def swept(file: Path, *words: str, rollouts: int = 700) -> Any:
    folder = file.parent
    budget = ("--budget", f"rollouts={rollouts}") if rollouts else ()
    space = ("--over", folder / "space.yaml", "--out", folder / "out")
    return command("sweep", file, *space, *budget, *words)


def results(file: Path) -> SweepResults:
    return SweepResults(file.parent / "out")


def test_trials_are_runs_that_are_continued_within_the_budget(file, commands) -> None:
    done = swept(file, "--json", "sweep.test_seeds=1")
    assert done.exit_code == 0, done.output
    printed, found = json.loads(done.stdout), results(file)
    assert found.rungs == [72, TRIAL]
    assert {one.sampler for one in found.trials} == {"tpe", "random"}
    assert 400 <= found.spent["rollouts"] <= 700 + 24 * len(found.trials)
    # Runs are begun once and continued, on the same prompts and noise.
    begun = [words[-1] for words in commands if words[0] == "train"]
    assert len(begun) == len({*begun})
    assert any(words[0] == "resume" for words in commands)
    assert {one.runs[0].config.seed for one in found.trials} == {0}
    assert all(one.score_at(TRIAL) == one.mean for one in found.complete)
    stopped = [one for one in found.trials if one.state == "pruned"]
    assert all(one.reason for one in stopped)
    # The best are tested with other run seeds, on other rows.
    tested = [one for one in found.ranked if one.tests]
    assert tested[:3] == found.ranked[:3]
    tests = [run for one in tested for run in one.tests]
    assert all(one.config.seed < 4 for trial in found.trials for one in trial.runs)
    assert {run.config.seed for run in tests} == {4}
    assert {one["split"] for run in tests if (one := run.evaluation)} == {"unseen"}
    assert printed["best"] == found.ranked[0].number
    assert [one["number"] for one in printed["trials"]] == [one.number for one in found.trials]
    assert "at best (shrunk) with" in swept(file, "sweep.test_seeds=1").output
    # A run that was continued from rung to rung has the bits of one that was not.
    run = found.complete[0].runs[0]
    whole = germline.train(run.config, file.parent / "whole").run().directory.path
    assert journal(whole) == journal(run.path)
    assert found.trials[0].runs[0].path == found.trials[0].path / "seed-0"
    assert (found.trials[0].path / "seeds.json").exists()


def test_a_stopped_sweep_goes_on_and_another_one_is_refused(file, commands, monkeypatch) -> None:
    runner = sweep_runner.SweepRunner
    train = runner.train

    def interrupted(self: Any, *arguments: Any) -> str:
        if len(commands) == 1:
            self.stop()
            return STOPPED
        return train(self, *arguments)

    monkeypatch.setattr(runner, "train", interrupted)
    assert swept(file, *QUICK).exit_code == 130
    assert [(one.state, one.present) for one in results(file).trials] == [("running", "stopped")]
    monkeypatch.setattr(runner, "train", train)
    (file.parent / "space.yaml").write_text(as_yaml(SPACE | {"shaping": ["z_score", "raw"]}))
    refused = swept(file, *QUICK).output
    assert "another space.shaping (it was None, asked for is ['z_score', 'raw'])" in refused
    (file.parent / "space.yaml").write_text(as_yaml(SPACE))
    assert "another strategy.sigma" in swept(file, *QUICK, "strategy.sigma=0.2").output
    assert "another sampler (it was 'tpe'" in swept(file, *QUICK, "sweep.sampler=random").output
    ended = swept(file, *QUICK)
    assert ended.exit_code == (0 if results(file).best else 1), ended.output
    first = results(file).trials[0]
    assert first.state != "running"
    begun = [words[-1] for words in commands if words[0] == "train"]
    assert begun.count(str(first.runs[0].path)) == 1
    # A larger budget goes on, also where the storage is lost.
    before, study = len(results(file).trials), file.parent / "out/study.db"
    study.write_text("damaged")
    said = swept(file, *QUICK, rollouts=900).output
    assert "file is not a database. Repeat the command when it can; if its file is damaged" in said
    study.unlink()
    assert swept(file, *QUICK, rollouts=900).exit_code == 0
    trials = results(file).trials
    assert len(trials) > before
    asked = [(one.sampler, one.asked) for one in trials]
    assert len({*asked}) == len(trials)
    monkeypatch.setattr("os.access", lambda _, mode: mode < 7)  # not to be written
    assert "may not be written to" in swept(file, *QUICK).output


def test_a_trial_without_a_signal_ends_at_the_first_rung(file, commands) -> None:
    (file.parent / "space.yaml").write_text(as_yaml({"strategy.sigma": [1e-9, 1e-8]}))
    done = swept(file, *QUICK, "task.temperature=0", "sweep.random=false", rollouts=230)
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "no trial is complete (no signal: all members earned" in said
    assert "weights): search other values, or take an easier task report: " in said
    # What is left is enough for the first rung of another trial, and not for its last one.
    assert [one.runs[0].done for one in results(file).trials] == [3]


def test_a_trial_that_collapses_or_fails_counts_as_the_worst(file, commands, monkeypatch) -> None:
    told: dict[int, list[float]] = {}
    ended: list[Any] = []

    def collapse(run: Any) -> str:
        ended.append(run)
        return "" if len(ended) % 2 else "broken"

    monkeypatch.setattr(sweep_runner, "collapse_of", collapse)
    monkeypatch.setattr(
        Samplers,
        "tell",
        lambda _self, _name, trials: told.update(
            {n: one for n, (_, one) in trials.items() if one and n not in told}
        ),
    )
    swept(file, "sweep.random=false", *QUICK)
    trials = results(file).trials
    assert {one.state for one in trials} >= {"collapsed"}
    assert told.keys() == {one.asked for one in trials}
    for one in trials:
        (value,) = told[one.asked]
        so_far = trials[: one.number + 1]
        starts = [-run.scores[0].mean for other in so_far for run in other.runs]
        worst = min([*starts, *(other.mean for other in so_far)])
        assert value == (worst if one.state == "collapsed" else one.mean)


def test_a_sweep_stops_where_every_trial_fails_and_tries_them_again(
    file, commands, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sweep_runner.SweepRunner, "train", lambda *_: "cannot be written: no space")
        done = swept(file)
    assert done.exit_code == 2
    assert "3 trials failed one after another, the last one with: cannot be written" in done.output
    found = results(file)
    assert [one.state for one in found.trials] == ["failed"] * 3
    # A trial that another process trains is its own, and what fails there now is not tried here.
    release = acquire_lock(found.trials[0].path, found)
    runner: Any = sweep_runner.SweepRunner.__new__(sweep_runner.SweepRunner)
    options = SimpleNamespace(budget=SimpleNamespace(limits={}))
    runner._retried = set()
    runner._sweep = SimpleNamespace(lock=nullcontext(), out=found.folder, options=options)
    runner._retry_failed()
    release()
    retried = results(file).trials
    assert [one.state for one in retried] == ["failed", "running", "running"]
    assert [bool(one.reason) for one in retried] == [True, False, False]
    assert runner._next_work() == (found.trials[1].path, runner._search)
    assert swept(file, *QUICK[2:]).exit_code == 0
    assert {one.state for one in results(file).trials} <= {"complete", "pruned"}


def test_no_trial_is_repeated_and_one_that_fails_stops_no_sweep(file, commands, monkeypatch):
    asks = mock.create_autospec(Samplers.ask, side_effect=Samplers.ask)
    monkeypatch.setattr(Samplers, "ask", asks)
    (file.parent / "space.yaml").write_text(as_yaml({"strategy.population": {"int": [4, 10]}}))
    for rollouts in (2000, 2500):  # pairs need an even population
        asks.reset_mock()
        assert swept(file, "sweep.random=false", *QUICK, rollouts=rollouts).exit_code == 0
        trials = [(*one.settings.values(), one.state == "failed") for one in results(file).trials]
        assert sorted(trials) == [(n, n % 2 > 0) for n in range(4, 11)]
    assert asks.call_count == sweep_runner.ASKS


def test_a_run_of_a_task_with_a_relative_path_is_continued(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]
    text = f"train = {rows}\n\n\ndef reward(completion, example):\n    return len(completion)\n"
    (tmp_path / "sums.py").write_text(text)
    config = {**SETTINGS, "task": {"kind": "python", "path": "sums.py", "max_new_tokens": 8}}
    run = finish(germline.train(load_config(config, ["generations=1"]), tmp_path / "run"))
    assert overrides_to_resume(load_config(config), run) == ["generations=4"]


@pytest.mark.parametrize(
    ("space", "words", "message"),
    [
        ({"strategy.sigmma": {"log": [0.1, 1.0]}}, (), "strategy.sigmma"),
        ({"generations": {"int": [1, 5]}}, (), "generations cannot be searched"),
        ({"task.max_new_tokens": [8, 16]}, (), "task.max_new_tokens cannot be searched"),
        ({"task": ["conciseness", "arithmetic"]}, (), "task cannot be searched"),
        ({"strategy.population": {"int": [-2, 4]}}, (), "strategy.population"),
        (SPACE, ("--budget", "rollouts=100"), "that a sampler may spend: give 618, or"),
        (SPACE, ("--budget", "steps=100"), "sweep.budget.steps: unknown setting"),
        (SPACE, ("--budget", "minutes"), "sweep.budget.minutes: must be a number"),
        (SPACE, ("--budget", "minutes="), "sweep.budget.minutes: must be a number"),
        (SPACE, ("--budget", "trials=0"), "sweep.budget.trials: must be greater than"),
        (SPACE, ("sweep.seed=4",), "sweep.seed: unknown setting (did you mean 'seeds'?)"),
        (SPACE, ("sweep.sampler=bayes",), "sweep.sampler: must be 'tpe'"),
        (SPACE, ("sweep.sampler=cmaes",), "searches two numbers or more"),
        (SPACE, ("sweep.objectives=speed",), "sweep.objectives: must be 'score'"),
        (SPACE, ("sweep.storage=nosuch://me:secret@host/db",), "the storage nosuch://host/db can"),
        (SPACE, ("sweep.objectives=tokens",), "trials are compared by score"),
        (SPACE, ("sweep.seeds",), "sweep.seeds: must be an integer"),
        ({1: [0.1, 1.0]}, (), "config: 1: unknown setting"),
        ({"strategy.population": {"int": [4, 6]}}, (), "a trial of strategy.population=5 cannot"),
        ({"strategy.sigma": [1, 2], "strategy.sigma.target_kl": [0.1, 1]}, (), "the same config"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(file, commands, space, words, message) -> None:
    (file.parent / "space.yaml").write_text(as_yaml(space))
    done = swept(file, *words)
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert commands == []


def test_ranges_in_units_of_the_probe_are_measured_once(file, commands, monkeypatch) -> None:
    measured: list[str] = []

    def probe(self: Sweep) -> dict[str, Any]:
        measured.append(self.source)
        return {"units": {"strategy.sigma": 0.3}, "settings": ["record.edge=2"]}

    monkeypatch.setattr(Sweep, "_probe", probe)
    (file.parent / "space.yaml").write_text(as_yaml({"strategy.sigma": {"probe": [0.5, 2]}}))
    for rollouts in (300, 350):
        assert swept(file, "sweep.random=false", *QUICK, rollouts=rollouts).exit_code == 0
    found = results(file)
    assert measured == [str(file)]
    assert found.space.given == {"strategy.sigma": {"log": [0.15, 0.6], "when": {}}}
    assert all(0.15 <= one.settings["strategy.sigma"] <= 0.6 for one in found.trials)
    assert {run.config.record.edge for one in found.trials for run in one.runs} == {2}
    best = json.loads((found.folder / "best.json").read_text())
    assert best["overrides"][0] == "record.edge=2"


def test_python_has_the_same_sweep(file, commands) -> None:
    budget = {"rollouts": 700.0}
    settings = SETTINGS | {"generations": 9}
    space = {"strategy.learning_rate": [0.01, 0.1]}
    out = file.parent / "here"
    found = germline.sweep(
        settings, space, out, budget=budget, sampler="grid", seeds=1, test_seeds=0
    )
    rates = [one.settings["strategy.learning_rate"] for one in found.trials]
    assert sorted(rates) == [0.01, 0.1]
    # Minutes are those of whole trainings, and not of their generations alone.
    for one in found.trials:
        of_generations = amounts(one.runs[0].run.spent)["minutes"]
        assert one.spent["minutes"] == of_generations + one.other_minutes
        assert min(of_generations, one.other_minutes) > 0
    with pytest.raises(GermlineError, match="holds no sweep"):
        SweepResults(file.parent)
    (out / "sweep.json").write_text("{")
    with pytest.raises(GermlineError, match=r"sweep\.json is damaged"):
        SweepResults(out)


def test_a_grid_trains_every_trial_with_all_seeds(file, commands, monkeypatch) -> None:
    monkeypatch.setattr(sweep_runner, "collapse_of", lambda _run: "always")
    space = {"strategy.learning_rate": [0.01, 0.1], "strategy.sigma": [0.1, 1.0]}
    (file.parent / "space.yaml").write_text(as_yaml(space))
    task, held_out = json.dumps(SETTINGS["task"]), json.dumps(SETTINGS["held_out"])
    given = ("budget.rollouts=72", "shaping=raw", f"task={task}", f"held_out={held_out}")
    done = swept(
        file, *given, "sweep.sampler=grid", "sweep.seeds=2", "sweep.test_seeds=0", rollouts=0
    )
    assert done.exit_code == 0, done.output
    assert f"report: {file.parent / 'out' / 'sweep.html'}" in done.output.replace("\n", "")
    found = results(file)
    assert len(found.trials) == 4
    assert {words[0] for words in commands} == {"train"}  # at once, without stops at rungs
    assert [one.state for one in found.trials] == ["complete"] * 4
    assert all(sorted(one.signed_scores) == [0, 1] for one in found.trials)
    # The settings of the best trial with those of the sweep, without what a study decides.
    best = json.loads((found.folder / "best.json").read_text())
    assert best["overrides"] == ["shaping=raw", *overrides_of(found.ranked[0].settings)]
    (heat_map,) = SweepReport(found).maps
    assert heat_map.title == "after 72 rollouts"
    assert (heat_map.y, heat_map.x) == ("strategy.learning_rate", "strategy.sigma")


def test_another_process_takes_over_the_trial_of_a_killed_one(file, monkeypatch) -> None:
    words = ["sweep", str(file), "--over", str(file.parent / "space.yaml"), "--out"]
    words += [str(file.parent / "out"), "--budget", "rollouts=700", "sweep.seeds=1"]
    words += ["sweep.test_seeds=0", "sweep.random=false"]
    line = [sys.executable, "-m", "germline", *words]
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    trials = file.parent / "out" / "trials"
    until = time.monotonic() + HANG_S
    while not [*trials.glob("*/seed-0/run.json")] and time.monotonic() < until:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert not is_locked(trials / "0000")
    others = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(4)]
    statuses = [one.wait(HANG_S) for one in others]
    monkeypatch.undo()  # other processes know what is better
    found = results(file)
    assert statuses == [0 if found.best else 1] * 4  # 1: no trial is better than its start
    assert all(one.state in ("complete", "pruned") for one in found.trials)
    for one in found.trials:
        spent = one.runs[0].run.spent["rollouts"]
        assert spent <= TRIAL + 24
        assert RunDirectory.open(one.runs[0].path).lost_generations == range(0)
    assert np.isfinite(found.ranked[0].mean)


# What Ray leaves to the garbage collector is its own business.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_places_the_engines_of_trials_that_wait_for_each_other(file, monkeypatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # a busy machine would not run its workers
    utilities = pytest.importorskip("ray.cluster_utils", reason="the extra `ray` is not installed")
    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80_000_000}
    cluster = utilities.Cluster(initialize_head=True, head_node_args=node)
    fleet = {"kind": "ray", "address": cluster.address, "placement_timeout_s": HANG_S}
    (file.parent / "space.yaml").write_text(as_yaml({"strategy.learning_rate": [0.01, 0.1]}))
    try:
        done = swept(
            *(file, f"fleet={json.dumps(fleet)}", "budget.rollouts=72", "--jobs", "2"),
            *("sweep.sampler=grid", *QUICK),
            rollouts=0,
        )
    finally:
        cluster.shutdown()
    assert done.exit_code == 0, done.output
    trials = results(file).trials
    assert [one.state for one in trials] == ["complete"] * 2
    for one in trials:
        config = load_config(one.runs[0].config, ["fleet=local"])
        alone = germline.train(config, file.parent / f"alone-{one.number}").run().directory.path
        assert journal(alone) == journal(one.runs[0].path)
