"""Signals in words and pictures: what is wrong is said, with what helps, live and on the page."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from germline.cli.live_view import LiveView
from germline.config import load_config
from germline.record import RunDirectory
from germline.record.metrics_rows import generation_row
from germline.report import signal_charts
from germline.report.advice import WINDOW, advice, mean, percent, without_update
from germline.report.html_page import write_report
from germline.signal_types import Signals, UpdateSize
from tests.synthetic_runs import BATCH, DIGEST, record
from tests.test_report_page import Page

STEP = UpdateSize(rms=0.002, in_roundings=40.0, least_in_roundings=3.0, moved=0.75, rank=6.0)
SOUND = Signals(
    informative_examples=0.5,
    informative_pairs=0.75,
    tied=0.25,
    empty=0.0,
    zero=False,
    zeros=0,
    zeros_in_a_row=0,
    agreement=0.5,
    signal_to_noise=2.0,
    directions=8.0,
    step=STEP,
)
NOTHING = replace(
    SOUND,
    informative_examples=0.0,
    informative_pairs=0.0,
    tied=1.0,
    zero=True,
    agreement=None,
    signal_to_noise=None,
    directions=None,
    step=UpdateSize(0.0, 0.0, 0.0, 0.0),
)


def made(generation, found=SOUND, failure=None, **changes):
    """Make up a generation with these signals."""
    return replace(record(generation, failure=failure), signals=replace(found, **changes))


def rows(count, found=SOUND, failure=None, **changes):
    return [generation_row(made(g, found, failure, **changes)) for g in range(count)]


def silent(count):
    """Make up a row of generations without a signal."""
    equal = (0.375, 0.375)
    return [replace(one, fitness=equal) for one in tied(count)]


def tied(count):
    """Make up a row of generations in which members differ, and the two of a pair do not."""
    return [made(g, NOTHING, zeros=g + 1, zeros_in_a_row=g + 1) for g in range(count)]


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", load_config({}), DIGEST, threads=1)


# --- advice


def test_where_nothing_is_wrong_nothing_is_said():
    assert advice(rows(WINDOW)) == {}


def test_rows_of_older_germlines_get_no_advice():
    assert advice([generation_row(record(g)) for g in range(WINDOW)]) == {}


def test_silence_is_said_from_the_third_generation_on():
    found = [generation_row(one) for one in silent(3)]
    assert "no signal" not in advice(found[:2])
    assert advice(found)["no signal"].startswith("no signal for 3 generations")
    assert "see germline probe" in advice(found)["no signal"]


def test_examples_that_no_member_solves_are_said_to_be_too_hard():
    found = [generation_row(one) for one in silent(4)]
    for row in found:
        row["fitness"] = dict.fromkeys(row["fitness"], 0.0)
    said = advice(found)["no signal"]
    assert said.startswith("no signal for 4 generations, every member has a fitness of 0: the ex")
    assert "easier ones first" in said
    earned = advice([*rows(WINDOW), *found])["no signal"]
    assert "too hard" not in earned
    assert "earlier generations earned more" in earned
    costs = [{**row, "fitness": dict.fromkeys(row["fitness"], -3.0)} for row in rows(WINDOW)]
    rose = advice([*costs, *found])["no signal"]
    assert "too hard" not in rose
    assert "earned less. If 0 is the highest reward, the examples are solved" in rose
    found[1]["fitness"] = dict.fromkeys(found[1]["fitness"], 0.25)
    assert "too hard" not in advice(found)["no signal"]


def test_a_fitness_that_never_changes_may_be_that_of_a_constant_reward():
    config = load_config({})
    same = [generation_row(one) for one in silent(4)]
    for row in same:
        row["fitness"] = dict.fromkeys(row["fitness"], 1.0)
    said = without_update(same, config)
    assert "The fitness was 1 throughout" in said
    assert "the reward does not tell them apart (`germline check task` tries it)" in said
    same[0]["fitness"] = dict.fromkeys(same[0]["fitness"], 1.5)
    assert "because the examples were solved" in without_update(same, config)


@pytest.mark.parametrize(
    ("changes", "about", "words"),
    [
        ({"empty": 0.75}, "empty", "75 % of the completions are empty: use a smaller sigma"),
        ({"informative_examples": 0.04}, "no signal", "members differ on 4 % of the examples"),
        ({"agreement": 0.01}, "agreement", "a larger batch_size or strategy.population"),
        ({"step": replace(STEP, moved=0.004)}, "moved", "changes 0.4 % of the served weights"),
    ],
)
def test_what_is_wrong_is_said_with_its_number_and_what_helps(changes, about, words):
    found = advice(rows(WINDOW, **changes))
    assert list(found) == [about]
    assert words in found[about]


@pytest.mark.parametrize("changes", [{"informative_examples": 0.0}, {"zeros_in_a_row": 5}])
def test_where_every_example_is_solved_no_larger_sigma_is_advised(changes):
    solved = [{**row, "fitness": {**row["fitness"], "mean": 1.0}} for row in rows(5, **changes)]
    (sentence,) = advice(solved).values()
    assert "a mean fitness of 1 suggests that the examples are solved" in sentence
    assert "sigma" not in sentence
    (sentence,) = advice(rows(5, **changes)).values()
    assert "a larger sigma" in sentence


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"informative_examples": 0.04}, "use a larger sigma"),
        ({"agreement": 0.01}, "a larger batch_size or strategy.population"),
    ],
)
def test_where_little_is_left_to_learn_no_larger_sigma_is_advised(changes, remedy):
    def earning(mean, best):
        return [
            {**row, "fitness": {**row["fitness"], "mean": mean, "max": best}}
            for row in rows(WINDOW, **changes)
        ]

    (sentence,) = advice(earning(0.97, 1.0)).values()
    assert "a mean fitness of 0.97, where the best members have 1, little is left" in sentence
    assert "sigma" not in sentence
    for unsolved in (earning(0.6, 1.0), earning(0.97, 3.0)):  # rewards of up to 3, or more
        (sentence,) = advice(unsolved).values()
        assert remedy in sentence


def test_completions_that_are_not_graded_are_said_with_a_reason_made_harmless():
    failed = "the grading of 100 % of the completions of the last generation failed"
    assert advice(rows(2, failure="timeout \x1b[31m")) == {"failed": f"{failed} (timeout �[31m)"}


def test_failed_gradings_are_no_lack_of_signal_and_sigma_that_grew_by_them_is_told():
    sound = rows(4)
    broken = [
        generation_row(
            replace(
                made(4 + g, NOTHING, "service down", zeros=g + 1, zeros_in_a_row=g + 1),
                fitness=(0.0, 0.0),
            )
        )
        for g in range(4)
    ]
    for one, sigma in zip([*sound, *broken], [0.1] * 5 + [0.15, 0.225, 0.34], strict=True):
        one["sigma"] = sigma
    assert advice([*sound, *broken]) == {
        "failed": "the grading of 100 % of the completions of the last generation failed (service "
        "down); sigma grew from 0.1 to 0.34 meanwhile, as members whose grading fails do not "
        "differ: germline resume RUN --from 3 goes back to before that"
    }
    (mended,) = advice([*sound, *broken, *rows(1)]).values()
    assert mended.startswith("the grading of 44 % of the completions of the last 9 generations")
    assert "sigma" not in mended


@pytest.mark.parametrize(
    ("count", "directions", "agreement", "is_said"),
    [(2, 1e4, -0.5, False), (3, 1e4, 0.0, True), (3, 8.0, 0.0, False), (3, 8.0, -0.1, True)],
)
def test_halves_that_share_no_signal_are_told_at_once_where_noise_does_not_explain_it(
    count, directions, agreement, is_said
):
    found = advice(rows(count, agreement=agreement, directions=directions))
    assert list(found) == ["agreement"] * is_said


def test_pairs_that_tie_are_told_from_the_third_generation_on_with_the_setting_that_helps():
    few = {"informative_pairs": 0.125, "agreement": -0.5}
    assert advice(rows(2, **few)) == {}
    (sentence,) = advice(rows(3, **few)).values()  # not that halves differ, too
    assert sentence.startswith("the two members of 88 % of the antithetic pairs tie: use a larger")
    assert "a larger strategy.sigma.target_kl" in sentence
    assert "antithetic pairs" not in str(advice(rows(WINDOW, **few)))


def test_a_run_with_automatic_steps_is_not_advised_to_use_them():
    plain = rows(WINDOW, agreement=0.01)
    assert "learning_rate=auto" in advice(plain)["agreement"]
    automatic = [row | {"learning_rate": 0.1 + g} for g, row in enumerate(plain)]
    assert "learning_rate=auto" not in advice(automatic)["agreement"]


def test_only_the_latest_generations_count():
    assert advice([*rows(30, empty=1.0), *rows(WINDOW)]) == {}


def test_the_gravest_comes_first():
    some = [replace(one, signals=replace(one.signals, empty=1.0)) for one in silent(3)]
    assert list(advice([generation_row(one) for one in some])) == ["no signal", "empty"]


def test_a_mean_is_of_the_generations_that_have_the_number():
    found = [*rows(1, agreement=0.25), *rows(1, agreement=None), *rows(1, agreement=0.75)]
    assert mean(found, "agreement") == 0.5
    assert mean(found, "step.moved") == 0.75
    assert mean([], "agreement") is None


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.0042, "0.42 %"), (0.5, "50 %"), (1.0, "100 %")]
)
def test_shares_are_written_with_the_digits_they_need(share, text):
    assert percent(share) == text


# --- live


def terminal():
    return Console(width=100, record=True, file=io.StringIO(), color_system=None)


def test_the_live_view_sums_up_the_signal_in_one_line(run):
    view = LiveView(terminal(), run)
    view.start()
    for generation in range(2):
        view.generation(made(generation, agreement=0.25 + generation / 2))
    view.close()
    view.console.print(view.render())
    shown = view.console.export_text()
    assert " ".join(shown.replace("│", " ").split()).count(
        "members differ on 50 % of examples 75 % of pairs differ agreement of halves 0.5 75 % of "
        "weights changed"
    )
    assert "germline probe" not in shown


def test_the_live_view_tells_of_empty_texts_and_weights_that_stay_where_there_are_some(run):
    view = LiveView(terminal(), run)
    view.start()
    view.generation(made(0, empty=0.25, step=replace(STEP, moved=1.0)))
    view.close()
    view.console.print(view.render())
    shown = view.console.export_text()
    words = " ".join(shown.replace("│", " ").split())
    assert "agreement of halves 0.5 25 % of completions empty" in words
    assert "weights changed" not in shown


# --- on the page


def page(run):
    return Page(write_report([run.path], run.path / "page.html"))


def test_the_page_has_a_section_of_signals(run):
    for generation in range(4):
        run.write(made(generation, agreement=generation / 4), BATCH)
    shown = page(run)
    assert "The signal of the latest generations has no problem" in shown.text
    assert re.search(r"agreement of halves\s*0\.125\s*0\.625", shown.text)
    assert re.search(r"signal to noise\s*0\.286\s*3\.33", shown.text)  # of the mean agreement
    assert re.search(r"served weights changed\s*75 %\s*75 %", shown.text)
    alts = [value for name, value in shown.attributes if name == "aria-label" and value]
    assert any("examples that tell members apart go from 50 % to 50 %" in alt for alt in alts)
    assert any("its mean goes from 0 to 0.75" in alt for alt in alts)
    assert any("served weights that each update changes, from 75 % to 75 %" in alt for alt in alts)


def test_the_page_says_what_is_wrong(run):
    for one in silent(3):
        run.write(one, BATCH)
    text = page(run).text
    assert "no signal for 3 generations, all members have the same fitness" in text
    assert "In every generation all members had the same fitness, so no update was made." in text
    assert "make members differ" not in text


CONFIG = load_config({})


def solved(row):
    return {**row, "fitness": {**row["fitness"], "mean": 1.0}}


def test_generations_without_an_update_have_a_remedy_where_no_other_advice_helps():
    silent_rows = [generation_row(one) for one in silent(2)]
    sentence = without_update([*silent_rows, *rows(WINDOW)], CONFIG)
    assert sentence.startswith("In 2 of 12 generations all members had the same fitness")
    assert sentence.endswith("or a larger sigma, make members differ.")
    assert without_update(rows(WINDOW), CONFIG) == ""


def test_pairs_that_tie_are_not_said_to_be_members_that_do_not_differ():
    found = [generation_row(one) for one in tied(3)]
    sentence = without_update(found, CONFIG)
    assert sentence.startswith(
        "In every generation the two members of every antithetic pair had the same fitness, so no "
    )
    assert "the reward does not tell them apart" not in sentence
    said = "3 generations, the two members of every antithetic pair have the same fitness"
    assert any(said in text for text in advice(found).values())


def test_no_remedy_is_named_for_generations_without_an_update_that_are_solved():
    last = [generation_row(one) for one in silent(2)]
    found = without_update([*rows(WINDOW), *map(solved, last)], CONFIG)
    assert "because the examples were solved: the mean fitness was 1 or more" in found
    assert "make members differ" not in found
    mixed = without_update([*last, *rows(WINDOW), solved(last[0])], CONFIG)
    assert "In 3 of 13 generations" in mixed
    assert "did not differ in 1 of them because the examples were solved" in mixed


def test_of_a_member_that_is_alone_no_difference_is_missed(tmp_path):
    alone = {
        "population": 1,
        "antithetic": False,
        "baseline": "running",
        "learning_rate": 0.01,
    }
    config = load_config({"strategy": alone, "shaping": "raw"})
    run = RunDirectory.create(tmp_path / "run", config, DIGEST, threads=1)
    changes = {"informative_examples": None, "informative_pairs": None, "agreement": None}
    for one in (silent(1)[0], made(1)):
        run.write(replace(one, signals=replace(one.signals, **changes)), BATCH)
    assert advice(run.generations()) == {}
    assert "equally good" not in page(run).text
    assert "differ from the running mean" in page(run).text
    assert signal_charts.signal_charts(rows(2, **changes, step=replace(STEP, moved=1.0))) == []


def test_a_member_that_is_as_good_as_ever_is_said_to_be():
    found = [
        generation_row(replace(one, signals=replace(one.signals, informative_examples=None)))
        for one in silent(3)
    ]
    assert "each equals the running mean" in advice(found)["no signal"]


def test_the_page_of_an_older_run_says_that_signals_were_not_recorded(run):
    run.write(record(0), BATCH)
    shown = page(run)
    assert "did not record signals" in shown.text
    assert "What the signals say" not in shown.text


def test_steps_are_those_of_generations_that_taught_something():
    some = [*rows(1), generation_row(silent(1)[0])]
    [moved] = [
        one
        for one in signal_charts.signal_readings(some * 2)
        if one.name == "served weights changed"
    ]
    assert (moved.start, moved.end) == ("75 %", "75 %")


def test_what_a_run_does_not_have_is_neither_drawn_nor_listed():
    whole = replace(STEP, moved=1.0)
    bare = rows(3, informative_pairs=None, agreement=None, signal_to_noise=None, step=whole)
    assert [chart.name for chart in signal_charts.signal_charts(bare)] == ["signal-shares"]
    names = [one.name for one in signal_charts.signal_readings(bare)]
    assert "pairs that differ" not in names
    assert "agreement of halves" not in names
