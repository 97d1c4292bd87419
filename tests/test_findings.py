"""Findings: each rule finds what it is for, once, and every view shows the same list."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.cli.run_loop import print_result
from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.record import RunDirectory
from germline.record.metrics_rows import generation_row, held_out_row
from germline.report.findings import (
    DOES_NOT_LEARN,
    GETS_WORSE,
    WINDOW,
    Recorded,
    find,
    find_in_rows,
)
from germline.run.observers import FindingLog
from germline.types import Signals
from tests.command_line import command
from tests.synthetic_runs import DIGEST, record
from tests.test_score_decline import FALLING, HOLDING, shares
from tests.toy_runs import run

pytestmark = pytest.mark.usefixtures("graded_in_process")

SOUND = Signals(
    informative_examples=0.5,
    informative_pairs=0.75,
    empty=0.0,
    zero=False,
    zeros_in_a_row=0,
    agreement=0.5,
    directions=8.0,
)
NOTHING = replace(SOUND, informative_examples=0.0, zero=True, agreement=None)
CONFIG = load_config({"generations": 10})


def made(generation, signals=SOUND, failure=None, **changes):
    """Make up a generation with these signals."""
    return replace(record(generation, failure=failure), signals=replace(signals, **changes))


def rows(count, signals=SOUND, failure=None, **changes):
    return [generation_row(made(g, signals, failure, **changes)) for g in range(count)]


def written(directory, log, generation):
    """Let a generation be seen after its row was written."""
    directory.last_row = generation_row(generation)
    log.on_generation(generation)


def silent(count):
    return [made(g, NOTHING, zeros_in_a_row=g + 1) for g in range(count)]


def codes(rows=(), **recorded):
    return [one.code for one in find(Recorded(CONFIG, rows, **recorded))]


def one(rows=(), config=CONFIG, **recorded):
    (finding,) = find(Recorded(config, rows, **recorded))
    return finding


# --- rules about generations


def test_a_sound_run_has_no_findings():
    assert codes(rows(WINDOW)) == []
    assert codes() == []


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"empty": 0.75}, "empty", "75 % of the completions are empty"),
        ({"informative_examples": 0.04}, "ties", "members differ on 4 % of the examples"),
        ({"agreement": 0.01}, "agreement", "(cosine 0.01)"),
    ],
)
def test_what_is_wrong_is_found_with_its_number(changes, code, words):
    found = one(rows(WINDOW, **changes))
    assert found.code == code
    assert words in found.sentence
    assert codes([*rows(30, **changes), *rows(WINDOW)]) == []  # only the latest count


def test_ties_are_found_by_the_third_generation():
    found = [generation_row(one) for one in silent(3)]
    assert codes(found[:2]) == []
    assert one(found).code == "ties"
    assert one(found).values["zeros_in_a_row"] == 3
    assert "sigma grows by itself up to strategy.sigma.max_kl" in one(found).sentence
    assert "strategy.sigma.target_kl" in one(found).sentence
    fixed = load_config({"strategy": {"sigma": 0.01}})
    assert "use a larger sigma" in one(found, fixed).sentence
    pairs = rows(3, informative_pairs=0.125)
    assert one(pairs).code == "ties"
    assert codes(pairs[:2]) == []


@pytest.mark.parametrize(
    ("count", "directions", "agreement", "is_found"),
    [(2, 1e4, -0.5, False), (3, 1e4, 0.0, True), (3, 8.0, 0.0, False), (3, 8.0, -0.1, True)],
)
def test_halves_disagree_unless_noise_explains_it(count, directions, agreement, is_found):
    found = codes(rows(count, agreement=agreement, directions=directions))
    assert found == ["agreement"] * is_found


def test_failed_gradings_are_found_with_a_reason_made_harmless():
    found = one(rows(2, failure="timeout \x1b[31m"))
    assert found.code == "failed"
    assert found.values["share"] == 1
    assert "timeout �[31m" in found.sentence


def test_a_walk_that_has_come_to_the_edge_is_found():
    config = load_config({"record": {"edge": 0.016}})
    assert one(rows(3, walk=0.02), config).code == "walk"
    assert find(Recorded(config, rows(3, walk=0.005))) == []


# --- rules about scores


def test_a_decline_is_found_with_its_interval():
    found = one(scores=shares(FALLING))
    assert (found.code, found.level) == ("decline", "warning")
    assert "has declined since update 50: it went from 0.8 to 0.38" in found.sentence
    assert codes(scores=shares(HOLDING)) == []
    vote = load_config({}, ["strategy={population: 6, sigma: 0.3}", "method=randopt"])
    assert find(Recorded(vote, scores=shares(FALLING))) == []


def judged(rewards, by_judge, *, higher=True):
    """Make up scores whose rewards and scores by a judge follow two curves."""
    random = np.random.default_rng(0)
    level = random.normal(scale=0.2, size=60)
    found = []
    for place, means in enumerate(zip(rewards, by_judge, strict=True)):
        reward, judge = (
            (mean + level + random.normal(scale=0.1, size=60)).tolist() for mean in means
        )
        by_name = score_of_values(2 * place, "judge", judge, higher_is_better=higher)
        exact = score_of_values(2 * place, "exact", reward, higher_is_better=True)
        found.append(replace(exact, rewards=tuple(reward), scorers=(by_name,)))
    return found


RISING, WORSE, FLAT = (0.2, 0.4, 0.6, 0.7, 0.8, 0.85), (0.5, 0.6, 0.62, 0.4, 0.3, 0.25), (0.5,) * 6


def test_a_scorer_that_declines_is_found_while_the_reward_rises():
    found = one(scores=judged(RISING, WORSE))
    assert found.code == "decline"
    assert (found.values["metric"], found.values["since"]) == ("judge", 4)
    costs = [1 - value for value in WORSE]
    assert codes(scores=judged(RISING, costs, higher=False)) == ["decline"]
    for rewards, by_judge in ((RISING, RISING), (RISING, FLAT), (RISING[:2], WORSE[:2])):
        assert codes(scores=judged(rewards, by_judge)) == []


def values_scores(before, after):
    return [
        score_of_values(generation, "exact", values, higher_is_better=True)
        for generation, values in ((0, before), (10, after))
    ]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([0.0] * 12 + [1.0] * 8, [1.0] * 19 + [0.0], []),
        ([0.0] * 12 + [1.0] * 8, [0.0] * 10 + [1.0] * 10, ["not_learned"]),
        # The interval excludes 0, but 5 examples that change decide nothing: a sign test has 0.06.
        ([0.0] * 6 + [1.0] * 30, [0.0] + [1.0] * 35, ["not_learned"]),
        ([0.0] * 6 + [1.0] * 29, [1.0] * 35, []),
        ([0.0], [1.0], []),  # of one example there is no interval
    ],
)
def test_an_improvement_that_is_not_clear_is_found(before, after, found):
    assert codes(scores=values_scores(before, after)) == found


def test_scores_without_any_difference_need_no_more_examples():
    equal, other = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    assert one(scores=values_scores(equal, equal)).sentence.endswith("(0 of 3 examples differ).")
    assert "More held-out examples" in one(scores=values_scores(equal, other)).sentence


# --- views


@pytest.fixture(scope="module")
def falling(tmp_path_factory):
    """A run whose held-out scores fell, as they are told to have."""
    path = run(tmp_path_factory.mktemp("falling") / "run", "generations=20", "held_out.every=2")
    written = [json.dumps(held_out_row(one)) + "\n" for one in shares(FALLING, every=2)]
    (path / "held_out.jsonl").write_text("".join(written))
    return path


def test_every_view_shows_the_same_list(falling, capsys):
    found = germline.findings(falling)
    assert found[0].code == "decline"
    print_result(RunDirectory.open(falling), quiet=True)
    summary = capsys.readouterr().out
    printed = command("report", falling).output
    page = germline.write_report(falling).read_text()
    assert '<li class="warning">' in page
    for text in (summary, printed, page):
        assert [text.count(one.sentence) for one in found] == [1] * len(found)
    document = json.loads(command("report", falling, "--json").stdout)
    assert document["runs"][0]["findings"] == json.loads(
        json.dumps([one.as_json() for one in found])
    )


def test_a_training_logs_each_warning_once(tmp_path, caplog):
    directory = RunDirectory.create(tmp_path / "run", CONFIG, DIGEST, 1)
    log = FindingLog(directory)
    for generation, one in enumerate([*silent(5), *[made(0)] * 20, *silent(4)]):
        written(directory, log, replace(one, generation=generation))
    (said,) = caplog.messages
    assert said.startswith("after 3 generations: Little or no signal")


def test_the_score_of_the_start_is_known_from_the_first_generation_on(tmp_path, caplog):
    directory = RunDirectory.create(tmp_path / "run", CONFIG, DIGEST, 1)
    log = FindingLog(directory)
    start = score_of_values(0, "exact", [9.0, 8.0], higher_is_better=True)
    directory.write_held_out(start, [], [])
    log.on_held_out(start, [])
    for one in silent(3):
        written(directory, log, one)
    (said,) = caplog.messages
    assert "use a smaller sigma, as the center earns 8.5" in said


def test_what_findings_link_to_is_a_heading_in_the_docs():
    docs = Path(__file__).parent.parent
    for link in (DOES_NOT_LEARN, GETS_WORSE):
        page, _, anchor = link.partition("#")
        lines = (docs / page).read_text(encoding="utf-8").splitlines()
        headings = [
            line.lstrip("# ").lower().replace(" ", "-") for line in lines if line[:1] == "#"
        ]
        assert anchor in headings


@pytest.mark.parametrize("higher", [True, False])
def test_a_collapse_is_found_where_a_decline_is_not_certain(higher):
    """Seen on nano: 9 of 30 right, then none of 30 at four scores (PPO at a rate of 0.03)."""
    values = [[1.0] * 9 + [0.0] * 21] + [[0.0] * 30] * 4
    scores = [
        score_of_values(
            2 * n, "exact", [one if higher else 1 - one for one in some], higher_is_better=higher
        )
        for n, some in enumerate(values)
    ]
    assert codes(scores=scores[:2]) == ["decline"]
    found = one(scores=scores)
    assert (found.code, found.level) == ("collapse", "warning")
    before, now = ("0.3", "0") if higher else ("0.7", "1")
    assert f"has collapsed: {before} before training, {now} after 8 updates" in found.sentence
    assert "a lower learning rate or sigma;" in found.sentence
    frozen = load_config({}, ["strategy={population: 6, sigma: 0.3}", "method=randopt"])
    assert [one.code for one in find(Recorded(frozen, scores=scores))] == ["not_learned"]


def test_a_small_loss_is_no_collapse():
    before, after = [1.0] * 140 + [0.0] * 60, [1.0] * 125 + [0.0] * 75  # .70 -> .62
    scores = values_scores(before, after) + 3 * values_scores(after, after)
    assert codes(scores=scores) == ["not_learned"]


def test_members_that_earn_less_than_the_center_need_a_smaller_sigma():
    scores = values_scores([1.0, 0.0], [1.0, 0.0])
    silent_rows = [generation_row(made(g, NOTHING, zeros_in_a_row=g + 1)) for g in range(3)]
    for row_of_members in silent_rows:
        row_of_members["fitness"] = {"mean": 0.1, "max": 0.2}
    found = find_in_rows(Recorded(CONFIG, silent_rows, scores))
    assert "else use a smaller sigma, as the center earns 0.5." in found[0].sentence
    assert "else wait, as sigma grows" in one(silent_rows).sentence
