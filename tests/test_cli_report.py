"""`germline report` from the command line, and repeating a run from its directory."""

import json
import shutil
import webbrowser
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from germline.cli.application import app
from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.record import RunDirectory
from germline.types import GermlineError
from tests.synthetic_runs import BATCH, DIGEST, record, rollout
from tests.toy_runs import journal, run

pytestmark = pytest.mark.usefixtures("graded_in_process")


def germline(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "run")


def scored(path, before, after, examples=BATCH):
    """Write a run with the held-out scores of two examples, before and after training."""
    made = RunDirectory.create(path, load_config({"task": "arithmetic"}), DIGEST, threads=1)
    for generation, values in enumerate((before, after)):
        if generation:
            made.write(record(0), [*examples, *BATCH[len(examples) :]])
        score = score_of_values(generation, "exact", values, higher_is_better=True)
        rollouts = [rollout(0, example.index, 1.0) for example in examples]
        made.write_held_out(score, rollouts, examples)
    return made.path


def test_several_runs_are_compared_over_the_same_examples(tmp_path):
    first = scored(tmp_path / "first", [0.0, 0.0], [0.5, 0.25])
    better = scored(tmp_path / "better", [0.0, 0.0], [1.0, 1.0])
    others = [replace(one, prompt=f"other {one.prompt}") for one in BATCH]
    elsewhere = scored(tmp_path / "elsewhere", [0.0, 0.0], [1.0, 1.0], others)
    fewer = scored(tmp_path / "fewer", [0.0], [1.0], BATCH[:1])
    words = ("report", first, better, elsewhere, fewer, "--out", tmp_path / "page.html")
    rows = [line.split("\t") for line in germline(*words).stdout.splitlines()[1:5]]
    why = "none: scored on other examples (germline eval scores both on the same)"
    found = [
        "",
        "+0.625 [+0.38, +0.87], 2 higher, 0 lower of 2",
        "none: scored on other examples (germline eval scores both on the same)",
        why,
    ]
    assert [row[-1] for row in rows] == found
    page = " ".join((tmp_path / "page.html").read_text().split())
    assert page.count("[+0.38, +0.87]") == 1
    assert page.count(why) == 2
    values = json.loads(germline(*words, "--json").stdout)["runs"]
    assert [one["difference_to_first"] for one in values] == [None, 0.625, None, None]
    assert values[1]["difference_interval_95"] == pytest.approx([0.38, 0.87])
    assert [one["difference_n"] for one in values] == [None, 2, None, None]


def test_the_page_of_a_comparison_is_named_after_its_runs(tmp_path, monkeypatch):
    runs = [scored(tmp_path / f"run-{place}", [0.0], [1.0], BATCH[:1]) for place in range(6)]
    study = tmp_path / ("five" * 11)
    for seed in (0, 1):
        shutil.copytree(runs[seed], study / f"seed-{seed}")
    (study / "seeds.json").write_text('{"seeds": [0, 1], "config": {}}')
    monkeypatch.chdir(tmp_path)
    for words, name in (
        (runs[:2], "report-run-0-run-1.html"),
        (runs, "report-run-0-run-1-run-2-run-3-2-more.html"),
        ([study.relative_to(tmp_path)], f"{study.name}/report.html"),
        ([study / "seed-0", study / "seed-1"], f"{study}/report.html"),
        ([runs[0], study], f"report-run-0-{study.name[:40]}.html"),
        ([runs[0], study / "seed-1"], f"report-run-0-{study.name[:40]}.html"),
    ):
        before = (tmp_path / name).exists()
        (line,) = (
            line for line in germline("report", *words).stdout.splitlines() if "written" in line
        )
        assert line == f"written to {name}" + ", in place of the page that was there" * before
    (runs[1] / "report.html").write_text("<!DOCTYPE html> of this run")
    assert germline("report", runs[1]).stdout.endswith(f"{runs[1]}/report.html\n")
    assert json.loads(germline("report", *runs, "--json").stdout)["replaced"]


def test_a_file_that_is_no_page_is_not_replaced(finished, tmp_path):
    kept = journal(finished)
    shown = germline("report", finished, "--out", finished / "journal.jsonl")
    assert shown.exit_code == 2
    assert "is no HTML page, so the report does not replace it; name another file" in shown.stderr
    assert journal(finished) == kept
    page = tmp_path / "page.html"
    page.touch()  # as `mktemp` makes it
    assert germline("report", finished, "--out", page).exit_code == 0


@pytest.mark.parametrize("works", [True, False])
def test_open_shows_the_page_or_says_that_it_could_not(finished, monkeypatch, works):
    asked = []

    def show(address):
        asked.append(address)
        return works

    monkeypatch.setattr(webbrowser, "open", show)
    shown = germline("report", finished, "--open")
    assert asked == [(finished / "report.html").as_uri()]
    assert ("no browser could be started" in shown.stderr) != works
    assert shown.exit_code == 0


def test_a_damaged_journal_is_said_beside_the_place_of_the_page(finished, tmp_path):
    damaged = shutil.copytree(finished, tmp_path / "damaged")
    lines = journal(finished).splitlines(keepends=True)
    (damaged / "journal.jsonl").write_bytes(lines[0] + b"{}\n" + b"".join(lines[2:]))
    shown = germline("report", damaged)
    assert shown.exit_code == 0
    assert shown.stdout.endswith(f"written to {damaged / 'report.html'}\n")
    assert "the journal is damaged" in shown.stderr
    assert "line 2" in shown.stderr
    values = json.loads(
        germline("report", damaged, finished, "--json", "--out", tmp_path / "p").stdout
    )
    assert "line 2" in values["runs"][0]["damage"]
    assert values["runs"][1]["damage"] is None


@pytest.mark.parametrize(
    "words", [("generate", "hello"), ("serve",), ("eval", "--task", "countdown")]
)
def test_a_name_beside_runs_that_is_none_of_them_is_no_model_to_download(finished, words):
    verb, *others = words
    shown = germline(verb, f"{finished}-2", *others)
    assert shown.exit_code == 2
    assert f"{finished}-2 is not a run directory" in shown.stderr
    assert f"did you mean '{finished}'?" in shown.stderr


def test_a_run_directory_stands_for_its_config(finished, tmp_path):
    config = RunDirectory.open(finished).config
    assert load_config(finished) == load_config(finished / "run.json") == config
    assert load_config(finished, ["seed=5"]).seed == 5
    again = tmp_path / "again"
    assert germline("train", finished, "--out", again, "--quiet").exit_code == 0
    assert journal(again) == journal(finished)


def test_a_config_is_not_mistaken_for_a_run(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("config: {seed: 1}")
    with pytest.raises(GermlineError, match="config: unknown setting"):
        load_config(file)
