"""What training should keep: scored beside the held-out examples, with a limit that stops a run."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import germline
from germline.config import load_config
from germline.config.config_files import model_source
from germline.engines.pretrained import load_tokenizer
from germline.evaluation.held_out import score_of_values
from germline.record import RunDirectory
from germline.record.early_stopping import best_score, exceeded_drop, mark_forgotten
from germline.report.text_format import retained_change
from germline.run.weights import find_generation, load_engine
from germline.types import Completion, Example, GermlineError
from tests.command_line import command
from tests.toy_runs import LETTERS, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

LICENSE = Path(__file__).parents[1] / "LICENSE"
STOP = f"[{', '.join(map(repr, LETTERS))}]"
TASK = f"{{kind: conciseness, max_new_tokens: 16, temperature: 1, stop: {STOP}}}"
FACTS = f"retained={{facts: {{task: {TASK}, examples: 5}}}}"
DRIFTING = ("strategy.learning_rate=0.5", "held_out.every=1", FACTS)
OTHER = "retained.sums={task: arithmetic, examples: 2, every: 2}"


def scores(*kept, higher_is_better=True):
    """Make up held-out scores, each a little better than the one before, that keep so much."""
    for updates, value in enumerate(kept):
        one = score_of_values(updates, "kept", [value], higher_is_better=higher_is_better)
        mine = score_of_values(updates, "mine", [updates / 10], higher_is_better=True)
        yield replace(mine, retained={"facts": one})


@pytest.mark.parametrize(("higher", "kept"), [(True, (0.9, 0.75, 0.5)), (False, (3.0, 3.15, 3.4))])
def test_a_score_that_lost_more_than_the_limit_is_never_the_best(higher, kept):
    found = [*scores(*kept, higher_is_better=higher)]
    assert [one.forgot for one in mark_forgotten(found, {"facts": 0.2})] == [(), (), ("facts",)]
    ending = exceeded_drop(found, {"facts": 0.2})
    assert ending is not None
    assert ending.setting == "retained.facts.max_drop=0.2"
    best = best_score(mark_forgotten(found, {"facts": 0.2}))
    assert best is not None
    assert best.generation == 1
    assert exceeded_drop(found, {"facts": 0.5}) is exceeded_drop(found, {"other": 0.1}) is None
    assert exceeded_drop([*scores(math.nan, 0.1)], {"facts": 0.1}) is None  # nothing is known
    assert mark_forgotten([], {"facts": 0.2}) == []
    gained = [one.retained["facts"] for one in found]
    assert retained_change("facts", gained).startswith(f"facts {kept[0]:g} -> {kept[-1]:g}")
    rise = [*gained, gained[1]]  # the first is the best of all: nothing to add
    assert "best" not in retained_change("facts", rise)
    assert retained_change("facts", [gained[2], gained[0], gained[1]]).endswith(
        f"(best {kept[0]:g})"
    )


def test_paths_are_those_of_the_folder_of_the_config_and_absolute_in_a_run(tmp_path):
    (tmp_path / "book.txt").write_text("A book.")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 2)
    file = tmp_path / "run.yaml"
    file.write_text("retained: {prose: {text: book.txt}, rows: {task: rows.jsonl}}\n")
    kept = load_config(file).with_absolute_paths().retained
    assert kept["prose"].text == tmp_path / "book.txt"
    assert getattr(kept["rows"].task, "path", None) == tmp_path / "rows.jsonl"


def test_scores_are_recorded_by_name_and_change_no_digest(tmp_path):
    plain = RunDirectory.open(run(tmp_path / "plain", "held_out.every=1"))
    kept = RunDirectory.open(run(tmp_path / "kept", "held_out.every=1", FACTS, OTHER))
    assert [one.digest for one in kept.journal.read()] == [
        one.digest for one in plain.journal.read()
    ]
    found = [row.score for row in kept.held_out()]
    assert [[*one.retained] for one in found] == [
        ["facts", "sums"] if updates % 2 == 0 else ["facts"] for updates in range(5)
    ]
    facts = found[0].retained["facts"]
    assert (facts.metric, facts.n, facts.higher_is_better) == ("length_difference", 5, False)
    text = command("report", kept.path).output
    assert re.search(r"^retained: facts \S+ (-> \S+ )?length difference", text, re.MULTILINE)
    assert ", sums 0" in text
    assert "retained: facts " in kept.report.read_text()
    best = min(one.retained["facts"].mean for one in found)
    assert (f"(best {best:.3g})" in text) == (f"(best {best:.3g})" in kept.report.read_text())
    shown = json.loads(command("report", kept.path, "--json").output)["runs"][0]["score"]
    assert shown["retained"]["sums"]["metric"] == "exact"


def test_engines_in_processes_score_the_same(tmp_path):
    kept = (FACTS, "retained.rounds={task: wordle, examples: 2}")
    one, two = (
        run(tmp_path / name, *kept, *more)
        for name, more in (("one", ()), ("two", ("fleet.engines=2",)))
    )
    assert (one / "held_out.jsonl").read_text() == (two / "held_out.jsonl").read_text()


def test_a_run_stops_when_it_lost_too_much_and_a_larger_limit_trains_on(tmp_path):
    whole = RunDirectory.open(run(tmp_path / "whole", *DRIFTING))
    kept = [row.score.retained["facts"].mean for row in whole.held_out()]
    at = next(updates for updates, value in enumerate(kept) if value > kept[0])
    assert at < len(kept) - 1
    stopped = RunDirectory.open(run(tmp_path / "stopped", *DRIFTING, "retained.facts.max_drop=0"))
    assert stopped.journal.last_generation() + 1 == at
    assert stopped.stopped_by == "retained.facts.max_drop=0"
    assert find_generation(stopped, "best") < at - 1
    with pytest.raises(GermlineError, match=r"retained.facts.max_drop=0: the run stopped"):
        germline.resume(stopped.path)
    shown = command("resume", stopped.path, "retained.facts.max_drop=99", "--quiet").output
    assert "Stopped" not in shown
    assert [one.digest for one in RunDirectory.open(stopped.path).journal.read()] == [
        one.digest for one in whole.journal.read()
    ]


def test_a_text_costs_the_nats_that_its_tokens_have_after_those_before_them(tmp_path):
    kept = {"license": {"text": LICENSE, "examples": 2}}
    small = {"batch_size": 8, "generations": 1, "held_out": {"examples": 2}}
    strategy = {"population": 8, "sigma": 0.05, "learning_rate": 0.05}
    config = {"task": "arithmetic", "retained": kept, "strategy": strategy, **small}
    directory = germline.train(config, tmp_path / "run").run().directory
    (start, end) = (row.score.retained["license"] for row in directory.held_out())
    assert (start.metric, start.n, start.higher_is_better) == ("nats per token", 2, False)
    engine = load_engine(directory, generation=-1)
    tokenizer, _ = load_tokenizer(model_source("nano"))
    ids = tokenizer(LICENSE.read_text()[:500], add_special_tokens=False)["input_ids"][:96]
    asked = Example(0, "", "", chat=False, token_ids=tuple(ids[:8]))
    written = Completion("", tuple(ids[8:]), "length", 8)
    (read,) = engine.log_probabilities([None], [asked], [[written]])[0]
    assert start.values[0] == pytest.approx(-math.fsum(read) / 88, rel=1e-4)
    assert end.mean != start.mean


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            ["retained.one.text=nothing.txt", "engine=inprocess"],
            "retained.one: text: .*cannot be read",
        ),
        ([f"retained.one.text={LICENSE}"], "retained.one: text: engine.kind=toy has no tokenizer"),
        (["retained.one.task=rows.jsonl"], "retained.one: task.path: .*rows.jsonl"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(changes, words, tmp_path):
    with pytest.raises(GermlineError, match=words):
        germline.train(settings(*changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_text_that_is_shorter_than_what_is_given_of_it_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("Hello.")
    config = {"task": "arithmetic", "retained": {"one": {"text": str(tmp_path / "short.txt")}}}
    with pytest.raises(GermlineError, match=r"short.txt has \d tokens; give a text of 96 or more"):
        germline.train(config, tmp_path / "run")
