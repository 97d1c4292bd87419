"""The page: it says what the run directory says, whatever state the run is in."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.report.html_page import write_report
from germline.report.run_facts import RunFacts, next_commands
from germline.run.weights import find_generation
from germline.types import Completion, GermlineError
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score
from tests.toy_runs import journal, settings
from tests.toy_runs import run as toy_run

pytestmark = pytest.mark.usefixtures("graded_in_process")


class Page(HTMLParser):
    """The words of a page, and the names and values of its attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.text = re.sub(r"\s+", " ", "".join(self.words))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def run(tmp_path):
    config = load_config({"task": "arithmetic", "generations": 10})
    return RunDirectory.create(tmp_path / "run", config, DIGEST, threads=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return toy_run(tmp_path_factory.mktemp("finished") / "run")


def page(run, *more):
    return Page(write_report([run.path, *more], run.path / "page.html"))


def answered(run, before, after):
    """Write held-out answers to the same prompt, before and after."""
    for updates, text in ((0, before), (1, after)):
        one = replace(rollout(0, 7, 0.5), completion=Completion(text, (1,), "eos", 1))
        run.write_held_out(score(updates, 0.25 + updates / 2), [one], BATCH)


def test_failures_are_counted_by_reason_and_missing_rewards_told_apart(run):
    timeouts = record(0, failure="timeout after 2 s")
    run.write(timeouts, BATCH)
    run.write(record(1, [[math.nan, 1.0], [1.0, 0.0]], failure="scorer: 503"), BATCH)
    run.write(record(2, [[math.nan, math.nan], [math.nan, math.nan]]), BATCH)
    text = page(run).text
    assert re.search(r"4\s*timeout after 2 s\s+4\s*scorer: 503", text)
    assert re.search(r"failed gradings\s+8\s*of 12; 5 rewards missing", text)


def test_the_time_of_a_generation_is_cut_into_its_parts(run):
    timing = {"evaluate_s": 3.0, "generate_s": 2.0, "apply_s": 0.5, "held_out_s": 0.5}
    run.write(replace(record(0), timing=timing), BATCH)
    facts = RunFacts(run.path)
    assert facts.times == {"generate_s": 2, "grading_s": 1, "apply_s": 0.5, "held_out_s": 0.5}
    assert facts.seconds == 4
    assert "grading_s25.0 %1 s" in page(run).text


def test_the_settings_shown_make_the_same_config(run):
    odd = {
        "task": {"kind": "countdown", "split_seed": 3, "stop": ["\n", "'<"]},
        "space": "full",
        "strategy": {
            "optimizer": "adam",
            "sigma": {"start": 0.01, "end": 0.001},
            "learning_rate": 0.01,
        },
        "seed": 9,
    }
    for values in ({}, odd):
        config = load_config(values)
        other = RunDirectory.create(run.path / str(config.seed), config, DIGEST, threads=1)
        words = "".join(Page(write_report(other.path)).words)
        shown = words[words.index("model: ") : words.index("Commands")]
        assert load_config(yaml.safe_load(shown)) == config


def test_a_run_has_a_page_in_every_state(finished, tmp_path, run):
    assert "finished 4 of 4 generations" in Page(finished / "report.html").text
    training = germline.train(settings(), tmp_path / "training")
    going_on = iter(training)
    next(going_on)
    assert "in progress 1 of 4 generations" in page(training.directory).text
    training.stop()
    assert list(going_on) == []
    text = Page(tmp_path / "training" / "report.html").text
    assert "stopped 1 of 4 generations; it can be resumed" in text
    assert "not scored yet" in page(run).text


def test_a_generation_that_is_being_written_is_left_out(run):
    run.write(record(0), BATCH)
    committed = journal(run.path)
    run.write(record(1), BATCH)
    (run.path / "journal.jsonl").write_bytes(committed)
    assert [row["generation"] for row in RunFacts(run.path).rows] == [0]


def test_a_damaged_journal_is_said_on_the_page(run):
    run.write(record(0), BATCH)
    data = journal(run.path)
    (run.path / "journal.jsonl").write_bytes(data.replace(b"0", b"1", 1))
    text = page(run).text
    assert "The journal is damaged. " in text
    assert "the checksum does not match" in text


def test_several_runs_share_curves_where_they_share_task_and_metric(run, tmp_path):
    config = load_config({"task": "arithmetic", "strategy": {"sigma": 0.25}, "generations": 10})
    wider = RunDirectory.create(tmp_path / "wider", config, DIGEST, threads=1)
    for one in (run, wider):
        one.write_held_out(score(0, 0.25), [], BATCH)
        one.write(record(0), BATCH)
    shown = page(run, wider.path)
    alts = [value for name, value in shown.attributes if name == "aria-label" and value]
    assert any("by updates: run from 0.25 to 0.25; wider from 0.25" in alt for alt in alts)
    assert "2 runs side by side" in shown.text


def test_what_is_no_run_and_what_cannot_be_written_is_refused(run, tmp_path):
    with pytest.raises(GermlineError, match="is not a run directory"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(GermlineError, match="name at least one run directory"):
        write_report([])
    with pytest.raises(GermlineError, match="name the file of the page"):
        write_report(run.path, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(GermlineError, match=r"file/page\.html cannot be written"):
        write_report(run.path, tmp_path / "file" / "page.html")


HOSTILE = (
    "<script>alert(1)</script>",
    "</style></p><img src=x onerror=alert(1)>",
    "\" onmouseover='alert(1)' x=\"",
    "{{ 7 * 7 }} {% include 'page.html' %}",
    "\x00\x1b[31mred\x07",
    "\u202eesrever\u2066",
    "\ud800 half a character",
    "<!--",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_obeyed(run, text):
    harmless = page(run)
    base = record(0, failure=text)
    rollouts = tuple(
        replace(one, completion=replace(one.completion, text=text))
        for one in base.evaluation.rollouts
    )
    examples = [replace(one, prompt=text, answer=text) for one in BATCH]
    run.write(replace(base, evaluation=replace(base.evaluation, rollouts=rollouts)), examples)
    run.write_held_out(score(0), rollouts, examples)
    run.write_held_out(score(1), rollouts, examples)
    shown = page(run)
    assert {"script", "img"}.isdisjoint(shown.tags)
    assert not [name for name, _ in shown.attributes if name.startswith("on") or name == "src"]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown.html)
    assert shown.html.count("</style>") == harmless.html.count("</style>")
    printable = "".join(one if one.isprintable() else "�" for one in text)
    assert shown.text.count(printable) >= 8


def test_huge_text_is_cut_and_the_rest_counted(run):
    run.write(record(0), BATCH)
    answered(run, "a" * 1_000_000, "b " * 1_000_000)
    shown = page(run)
    assert "… (998,800 more characters)" in shown.text
    assert len(shown.html) < 150_000


def test_hostile_names_and_settings_are_escaped(tmp_path):
    config = load_config({"model": "<b>bold</b>", "task": {"stop": ["</pre><script>"]}})
    run = RunDirectory.create(tmp_path / "<i>run</i>", config, DIGEST, threads=1)
    shown = page(run)
    assert {"i", "script"}.isdisjoint(shown.tags)
    assert "<i>run</i>" in shown.text


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
