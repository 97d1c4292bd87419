"""Methods compared at the same budget: which runs are begun, continued and read, and the report."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

import germline
from germline.config.config_files import as_yaml
from germline.record import RunDirectory
from germline.report.text_format import number
from germline.studies import run_processes, study_report
from germline.studies.study_file import Study
from germline.studies.study_report import front
from germline.studies.study_results import CellResult, MethodResult, StudyResults, TaskResult
from germline.types import GermlineError, HeldOutScore
from tests.command_line import command
from tests.hang_limit import HANG_S
from tests.run_commands import run_commands_here
from tests.toy_runs import SETTINGS, journal, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

STUDY: dict[str, Any] = {
    "seeds": "0..1",
    "budget": {"rollouts": 64},
    "after": [30],  # calibration may take a few rollouts more
    "eval": [],
    "settings": ["held_out.every=1"],
    "tasks": {"short": {"config": "toy.yaml", "target": 1e6}},
    "methods": {
        "few": {"settings": ["strategy.population=4"]},
        "many": {"on": {"short": ["strategy.population=8"]}},
    },
}
"""Few members spend the budget in 4 generations, the last ones; many in 2 of 4."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(as_yaml(SETTINGS))
    return write_study(tmp_path)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Run the commands of cells in this process; return those that ran."""
    return run_commands_here(monkeypatch)


def write_study(folder: Path, **changes: Any) -> Path:
    (folder / "study.yaml").write_text(as_yaml({**STUDY, **changes}))
    return folder / "study.yaml"


def compared(file: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Return exit status and output of the command, and the numbers that it wrote."""
    out = file.parent / "out"
    result = command("compare", file, "--out", out, *words)
    return result.exit_code, result.output, json.loads((out / "compare.json").read_text())


def test_every_cell_is_an_ordinary_run_that_spends_the_budget(file, commands) -> None:
    status, printed, facts = compared(file)
    assert status == 0
    assert [words[0] for words in commands] == ["train"] * 4
    assert "4/4 short, many, seed 1: " in printed
    rows = {(row["method"], run["run"]): run for row in facts["methods"] for run in row["runs"]}
    for (method, path), row in rows.items():
        directory = RunDirectory.open(Path(path))
        assert directory.has_ended
        assert directory.spent["rollouts"] == row["cost"]["rollouts"] == 64
        assert directory.journal.last_generation() + 1 == {"few": 4, "many": 2}[method]
        curve = [(one["rollouts"], one["score"]) for one in row["curve"]]
        scores = [one.score.mean for one in directory.held_out()]
        assert curve == list(zip(range(0, 65, 64 // (len(scores) - 1)), scores, strict=True))
    alone = run(file.parent / "alone", "strategy.population=8", "held_out.every=1", "seed=1")
    first = journal(alone).splitlines()[:2]
    assert journal(file.parent / "out/short/many/seed-1").splitlines() == first
    page = (file.parent / "out" / "compare.md").read_text()
    assert "| task | method | seeds | before | after 30 | end |" in page
    for method in ("few", "many"):
        curves = [row["curve"] for (of, _), row in rows.items() if of == method]
        mean = fmean(one["score"] for curve in curves for one in curve if one["rollouts"] == 32)
        assert f" | {number(mean)} | " in page.split(f"| short | {method} | 2 | ")[1].split("\n")[0]
    assert "means have no interval: it takes 5 seeds, and there are 2" in page
    assert "95 % interval" not in page.replace("with 95 % intervals", "")
    assert "(few run seeds: 2)" in page
    assert (file.parent / "out" / "compare.png").stat().st_size > 10_000
    html = (file.parent / "out" / "compare.html").read_text()
    assert "means have no interval: it takes 5 seeds" in html
    assert html.count("<svg") == 1
    assert "<script" not in html
    # A second call reads what has ended.
    commands.clear()
    assert compared(file)[2]["methods"] == facts["methods"]
    assert commands == []
    for name, cells in (("qiu", "| short | "), ("cost", "| short | many | 64 | ")):
        printed = compared(file, "--jobs", "0", "--table", name)[1]
        assert cells in printed
        assert printed.splitlines()[1].startswith("| --- | --- |")
    assert r"short & few & 64" in (file.parent / "out" / "cost.tex").read_text()
    message = command("compare", file, "--out", file.parent / "out", "--table", "coverage").output
    assert "no run was evaluated with several samples" in message


def test_a_run_that_was_interrupted_is_continued_and_a_larger_budget_trains_on(
    file, commands
) -> None:
    cell = file.parent / "out/short/few/seed-0"
    config = settings("strategy.population=4", "held_out.every=1", "budget.rollouts=32")
    stopped_after(germline.train(config, cell), 1)
    compared(file, "budget.rollouts=32")
    assert [words[0] for words in commands] == ["resume", "train", "train", "train"]
    commands.clear()
    compared(file)
    assert [words[-1] for words in commands] == ["budget.rollouts=64"] * 4
    assert journal(cell) == journal(
        run(file.parent / "whole", "strategy.population=4", "held_out.every=1")
    )
    write_study(file.parent, settings=[*STUDY["settings"], "batch_size=3"])
    result = command("compare", file, "--out", file.parent / "out")
    assert "was run with another batch_size (4, not 3)" in result.output


def test_a_run_that_fails_is_listed_and_the_others_go_on(file, commands) -> None:
    config = settings("strategy.population=4", "held_out.every=1", "budget.rollouts=64")
    held = germline.train(config, file.parent / "out/short/few/seed-0")  # keeps the lock
    status, printed, facts = compared(file)
    assert status == 1
    assert "short, few, seed 0: not ended: " in printed
    assert facts["failures"][0].startswith("short, few, seed 0: not ended: ")
    assert "short, few: 1 of 2 runs have not ended and do not count" in facts["notes"]
    assert "one seed" in printed
    held.directory.release_lock()
    held._parts.close()
    status, _, facts = compared(file)
    assert status == 0
    assert facts["failures"] == []
    assert [*facts["notes"]] == ["means have no interval: it takes 5 seeds, and there are 2"]


def test_what_eval_prints_is_kept_with_the_run(file, commands) -> None:
    write_study(file.parent, eval=["--samples 2 --temperature 1", "--split test"], seeds=0)
    facts = compared(file)[2]
    assert [words[0] for words in commands] == ["train", "eval", "eval"] * 2
    (only,) = facts["methods"][0]["runs"]
    assert only["evaluation"]["mean"] == pytest.approx(facts["methods"][0]["results"][0]["end"])
    assert (
        "| task | method | best@1 | best@2 |"
        in compared(file, "--jobs", "0", "--table", "coverage")[1]
    )
    commands.clear()
    compared(file)
    assert commands == []


def test_a_run_whose_evaluation_failed_has_ended(file, commands) -> None:
    wrong = write_study(file.parent, eval=["--task no_such_task"], seeds=0)
    assert "there is no kind 'no_such_task'" in command("compare", wrong).output
    assert commands == []
    wrong = write_study(file.parent, eval=["task.max_new_tokens=many"], seeds=0)
    assert "task.max_new_tokens: must be an integer" in command("compare", wrong).output
    assert commands == []
    write_study(file.parent, eval=["task.temperature=1"], seeds=0)
    status, printed, facts = compared(file, "--only", "few")
    assert status == 1
    assert "not ended" not in printed
    assert facts["failures"][0].startswith("short, few, seed 0: evaluation failed: ")


def test_runs_that_an_interrupt_leaves_out_are_noted(file, commands, monkeypatch) -> None:
    compared(file, "--only", "few", "seeds=0")
    cell = file.parent / "out/short/many/seed-0"
    config = settings("strategy.population=8", "held_out.every=1", "budget.rollouts=64")
    stopped_after(germline.train(config, cell), 1)
    begin = run_processes.StudyRunner.run_cells
    monkeypatch.setattr(
        run_processes.StudyRunner, "run_cells", lambda self: (self.stop(), begin(self))
    )
    status, printed, facts = compared(file)
    assert status == 130
    assert facts["failures"] == []
    assert "Interrupted: the same command goes on." in printed
    assert "short, many: 2 of 2 runs have not ended and do not count" in facts["notes"]
    assert "seed 1" not in printed


def test_what_was_forgotten_is_a_table(file, commands) -> None:
    sums = "retained={sums: {task: arithmetic, examples: 2}}"
    write_study(file.parent, seeds=0, settings=[sums])
    words = ("--table", "forgetting")
    out = ("--out", file.parent / "out")
    assert "nothing in `retained`" in command("compare", file, *out, "--jobs", "0", *words).output
    printed = compared(file, *words)[1]
    assert "| task | method | sums |" in printed
    ends = RunDirectory.open(file.parent / "out/short/few/seed-0").held_out()
    before, after = (ends[at].score.retained["sums"].mean for at in (0, -1))
    assert f"| short | few | {number(before)} -> {number(after)} |" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": {"a": {}, "b": {"settings": ["task.stop=[a]"]}}}, r"task.stop is .* with a"),
        ({"methods": {"a": {}, "b": {"settings": ["held_out.examples=4"]}}}, "same questions"),
        (
            {
                # The held-out completions of toy runs are sampled, too.
                "methods": {"a": {}, "b": {"settings": ["task.temperature=0.5"]}}
            },
            "task.temperature is 1.0 with a and 0.5 with b",
        ),
        ({"methods": {"a": {"on": {"long": []}}}}, "methods.a.on names long, and the tasks are"),
        ({"methods": {"a": {"settings": ["sigma=1"]}}}, r"short, a: config: sigma: unknown"),
        ({"methods": {"a/b": {}}}, "String should match pattern"),
        ({"seeds": [1, 1]}, r"seeds=\(1, 1\): name whole numbers, each once"),
        ({"seed": 1}, r"seed: unknown setting \(did you mean 'seeds'\?\)"),
        ({"tasks": {"short": "none.yaml"}}, "short, few: config: there is no file"),
    ],
)
def test_a_study_that_cannot_be_compared_is_refused(file, changes, message) -> None:
    with pytest.raises(GermlineError, match=message):
        Study(write_study(file.parent, **changes))


def test_methods_may_sample_their_training_at_different_temperatures(file) -> None:
    methods = {"a": {}, "b": {"settings": ["task.temperature=0.5"]}}
    write_study(file.parent, methods=methods, settings=["held_out.temperature=0"])
    assert len(Study(file).cells) == 4
    assert {cell.method for cell in Study(file, only=["b"]).cells} == {"b"}
    with pytest.raises(GermlineError, match="--only c: the tasks are short, and the methods are"):
        Study(file, only=["b", "c"])


def test_the_shipped_study_is_read_by_name() -> None:
    with pytest.raises(GermlineError, match=r"no file 'nano_es'; shipped are .*nano_es_vs_rl"):
        Study(Path("nano_es"))
    study = Study(Path("nano_es_vs_rl"))
    assert len(study.cells) == 2 * len(study.file.methods) * 5
    assert {cell.seed for cell in study.cells[: len(study.configs)]} == {0}
    assert {one.task.kind for one in Study(Path("wordle")).configs.values()} == {"wordle"}


def test_an_interrupted_study_goes_on_to_the_same_bits(file) -> None:
    write_study(file.parent, budget={}, seeds=0, methods={"few": {}}, settings=["generations=40"])
    out = file.parent / "out"
    words = [sys.executable, "-m", "germline", "compare", str(file), "--out", str(out)]
    process = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
    cell, until = out / "short/few/seed-0", time.monotonic() + HANG_S
    while not (cell / "journal.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 130
    assert 0 < len(journal(cell).splitlines()) < 40
    assert subprocess.run(words, check=False).returncode == 0
    assert journal(cell) == journal(run(file.parent / "whole", "generations=40"))
    assert len(StudyResults(Study(file, [], out)).tasks[0].methods) == 1


def test_a_method_may_have_the_settings_of_a_sweep(file, commands) -> None:
    sweep = file.parent / "sweep"
    sweep.mkdir()
    write_study(file.parent, methods={"tuned": {"sweep": str(sweep)}}, seeds="0")
    with pytest.raises(GermlineError, match=r"sweep: this sweep has no best trial"):
        Study(file)
    spent = {"spent": {"rollouts": 4321.0}, "seeds": [0, 1]}
    best = {"number": 3, "overrides": ["strategy.sigma=0.5"], **spent}
    (sweep / "best.json").write_text(json.dumps(best))
    _, printed, _ = compared(file, "--table", "cost")
    assert "rollouts of tuning" in printed
    said = "the sweep of tuned chose its settings with run seeds 0, whose scores flatter it"
    assert said in (file.parent / "out/compare.md").read_text()
    assert "| 4321 |" in printed.replace(",", "")
    tuned = RunDirectory.open(file.parent / "out/short/tuned/seed-0")
    assert tuned.config.strategy.model_dump()["sigma"] == 0.5


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
    (two,) = task_of(made_up("b", 0.9, 0.95), made_up("a", 0.1, 0.11)).pairs
    assert two.difference is not None
    assert two.difference.interval is None
    assert not two.is_shown
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
