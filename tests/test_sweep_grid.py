"""A grid maps the space: every trial is trained to its end, with all run seeds."""

import json
import shutil

from germline.config.config_files import as_yaml
from germline.record.run_paths import acquire_lock
from germline.studies import sweep_runner
from germline.studies.sweep import Sweep, SweepOptions
from germline.studies.sweep_report import SweepReport
from germline.studies.sweep_space import SweepSpace, overrides_of
from tests import test_sweep
from tests.test_sweep import results, swept
from tests.toy_runs import SETTINGS

file, commands = test_sweep.file, test_sweep.commands
pytestmark = test_sweep.pytestmark


def test_a_grid_trains_every_trial_with_all_seeds(file, commands, monkeypatch) -> None:
    monkeypatch.setattr(sweep_runner, "collapse_of", lambda _run: "collapsed: always")
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
    # Seeds are trained at the same time: a trial that another process trains blocks no other one.
    for trial in found.trials[:2]:
        shutil.rmtree(trial.path / "seed-1")
    options = SweepOptions(sampler="grid", seeds=2, test_seeds=0)
    runner = sweep_runner.SweepRunner(
        Sweep(str(file), given, SweepSpace(space), found.folder, options)
    )
    releases = [acquire_lock(found.trials[0].path, runner)]
    work = runner._next_work()
    assert work is not None
    assert work[0] == found.trials[1].path
    releases.append(acquire_lock(work[0], runner))
    assert runner._next_work() is None
    for release in releases:
        release()
