"""The commands that a finished training suggests: they can be pasted, and fit how it ended."""

import io
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest
from rich.console import Console

from germline.cli.train_summary import print_next_commands
from germline.config import load_config
from germline.evaluation.held_out import score_of_values
from germline.record import RunDirectory
from germline.report import text_format
from germline.types import HeldOutScore
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score
from tests.test_score_decline import FALLING, shares


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")  # a clone may have an exported my-model


def terminal() -> Console:
    return Console(width=90, force_terminal=True, record=True, file=io.StringIO())


def printed_lines(run: RunDirectory) -> list[str]:
    console = terminal()
    print_next_commands(console, run)
    return console.export_text().splitlines()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_going_on_is_not_suggested_where_it_would_bend_a_schedule(
    tmp_path: Path, schedule: str
) -> None:
    sigma = {"kind": schedule, "start": 0.01, "end": 0.002}
    config = load_config({"generations": 10, "strategy": {"sigma": sigma}})
    shown = terminal()
    print_next_commands(shown, RunDirectory.create(tmp_path / "run", config, DIGEST, 1))
    printed = shown.export_text()
    assert "germline export" in printed
    assert "germline resume" not in printed


def test_the_next_commands_can_be_pasted(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "my run", load_config({}), DIGEST, 1)
    console = terminal()
    print_next_commands(console, run)
    printed = console.export_text()
    assert f"  germline export '{run.path}' --out my-model" in printed
    assert "did not improve" not in printed


def test_a_folder_that_exists_is_not_suggested_for_an_export(
    run: RunDirectory,
) -> None:
    Path("my-model").mkdir()
    assert f"  germline export {run.path} --out my-model-2" in printed_lines(run)


def test_the_best_generation_is_exported_where_it_is_clearly_better(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(5, 0.75), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(10, 0.5), [rollout(5, 7, 1.0)], BATCH)
    console = terminal()
    print_next_commands(console, run)
    lines = console.export_text().splitlines()
    # The best score is clearly better than the first one, so its generation is worth exporting.
    assert f"  germline export {run.path} --generation best --out my-model" in lines
    assert "did not improve" not in "".join(lines)


def test_a_reward_that_rose_where_its_metric_could_not_is_exported(run: RunDirectory) -> None:
    solved = score_of_values(0, "right", [1.0, 1.0], higher_is_better=True)
    for generation, reward in ((0, 1.1), (5, 1.3), (10, 1.2)):
        one = replace(solved, generation=generation, reward=reward)
        run.write_held_out(one, [rollout(0, 7, reward)], BATCH)
    printed = " ".join(" ".join(printed_lines(run)).split())
    assert "Every held-out example was right before training (right). The mean reward" in printed
    assert "rose from 1.1 to 1.3" in printed
    assert "take harder examples" not in printed
    assert f"germline export {run.path} --generation best --out my-model" in printed


@pytest.mark.parametrize(("count", "has_more"), [(100, True), (26, False)])
def test_all_examples_are_suggested_only_where_the_run_scored_a_part(
    run: RunDirectory, count: int, *, has_more: bool
) -> None:
    for generation, value in ((0, 0.0), (10, 1.0)):
        one = score_of_values(generation, "right", [value] * count, higher_is_better=True)
        run.write_held_out(one, [rollout(0, 7, one.reward)], BATCH)
    printed = printed_lines(run)
    said = " ".join(" ".join(printed).split())
    assert (f"  germline eval {run.path}" in printed) == has_more
    assert ("learn there: score all of the task's, or take" in said) == has_more
    assert ("learn there: take harder examples." in said) != has_more


def test_a_doubt_that_a_sign_test_decides_names_its_p_value(run: RunDirectory) -> None:
    before = [*([0.0] * 3), *([1.0] * 7)]
    for generation, values in ((0, before), (10, [1.0] * 10)):
        one = score_of_values(generation, "exact", values, higher_is_better=True)
        run.write_held_out(one, [rollout(0, 7, one.reward)], BATCH)
    printed = " ".join(" ".join(printed_lines(run)).split())
    assert "3 higher, 0 lower of 10 examples; the sign test of so few has p = 0.25" in printed


def test_what_comes_next_after_no_improvement_is_a_probe(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(10, 0.5), [rollout(5, 7, 1.0)], BATCH)
    lines = printed_lines(run)
    assert lines[0].startswith("The held-out exact did not improve (0.5 -> 0.5): see the signals")
    assert f"  germline probe {run.path}" in lines
    assert f"  germline eval {run.path} -g -1 -g 9" in lines
    assert not [line for line in lines if "export" in line]


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (0.8, "(0 -> 0), but the reward of the same completions rose (mean reward 0.246 -> 0.8)"),
        (0.2, "(0 -> 0), nor did the reward (mean reward 0.246 -> 0.2): see the signals"),
    ],
)
def test_what_the_reward_did_is_said_where_its_metric_did_not_improve(
    run: RunDirectory, reward: float, said: str
) -> None:
    for generation, mean_reward in ((0, 0.246), (10, reward)):
        one = replace(score(generation, 0.0), reward=mean_reward, higher_is_better=True)
        run.write_held_out(one, [rollout(0, 7, 0.0)], BATCH)
    printed = " ".join(" ".join(printed_lines(run)).split())
    assert f"The held-out exact did not improve {said}" in printed
    assert "germline export" not in printed


def test_a_run_without_an_update_is_said_to_have_none(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 0.0)], BATCH)
    for generation in range(2):
        same = record(generation, [[0.5, 0.5], [0.5, 0.5]])
        run.write(replace(same, utilities=(0.0, 0.0)), BATCH)
    run.write_held_out(score(2, 0.5), [rollout(5, 7, 1.0)], BATCH)
    said = " ".join(" ".join(printed_lines(run)).split())
    assert "had the same fitness" not in said  # The run's warning has said so.
    assert "The held-out exact did not improve" in said
    # All generations have the same weights, so neither an eval of two nor more of them helps.
    assert "germline eval" not in said
    assert "germline resume" not in said
    run.write(record(2), BATCH)
    lines = printed_lines(run)
    *sentences, heading = takewhile(lambda line: not line.startswith(" "), lines)
    assert sentences
    assert heading == "next:"
    assert all(line.startswith("  germline ") for line in lines[len(sentences) + 1 :])
    said = " ".join(" ".join(printed_lines(run)).split())
    assert "In 2 of 3 generations all members had the same fitness" in said
    assert "germline eval" in said
    assert "germline resume" in said


def test_a_run_that_declined_is_not_continued_from_its_last_weights(run: RunDirectory) -> None:
    for one in shares(FALLING, every=1):
        run.write(record(one.generation), BATCH)
        run.write_held_out(one, [rollout(0, 7, 0.0)], BATCH)
    lines = printed_lines(run)
    assert any("germline export" in line and "--generation best" in line for line in lines)
    assert not [line for line in lines if "germline resume" in line]


def values_score(generation: int, values: list[float]) -> HeldOutScore:
    return score_of_values(generation, "exact", values, higher_is_better=True)


def test_where_all_was_right_before_training_nothing_is_left_to_learn(run: RunDirectory) -> None:
    for generation in (0, 10):
        done = replace(values_score(generation, [1.0] * 9), proportion=True)
        run.write_held_out(done, [rollout(0, 7, 0.0)], BATCH)
    assert "nothing is left to learn there" in "".join(printed_lines(run))


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_more_generations_are_not_suggested_where_all_is_right(
    run: RunDirectory, before: float
) -> None:
    for generation, value in ((0, before), (10, 1.0)):
        run.write_held_out(values_score(generation, [value] * 9), [rollout(0, 7, 0.0)], BATCH)
    lines = printed_lines(run)
    assert "  germline new task my_task" in lines
    assert any("germline export" in line for line in lines) is not bool(before)
    assert not [line for line in lines if "germline resume" in line]
    said = " ".join(" ".join(lines).split())
    assert ("Every held-out example of the run is right now" in said) is not bool(before)


def test_a_scorer_says_how_many_texts_it_could_not_score() -> None:
    nan = float("nan")
    few = replace(values_score(0, [1.0, nan, nan]), n=1, mean=1.0)
    line = text_format.scorer_line(few, values_score(5, [1.0, 0.0, 1.0]))
    assert "(n 1 of 3) -> " in line
    assert not line.endswith("of 3)")


@pytest.mark.parametrize(
    ("before", "after", "is_clear"),
    [
        ([0.0] * 12 + [1.0] * 8, [1.0] * 20, True),
        ([0.0] * 12 + [1.0] * 8, [0.0] * 10 + [1.0] * 10, False),
        # The interval excludes 0, but 5 examples that change decide nothing: a sign test has 0.06.
        ([0.0] * 5 + [1.0] * 30, [1.0] * 35, False),
        ([0.0] * 6 + [1.0] * 29, [1.0] * 35, True),
        ([0.0] * 7 + [1.0] * 28, [1.0] * 34 + [0.0], False),
        ([0.0], [1.0], False),  # of one example there is no interval
    ],
)
def test_export_is_suggested_where_the_improvement_is_clear(
    run: RunDirectory, before: list[float], after: list[float], *, is_clear: bool
) -> None:
    run.write_held_out(values_score(0, before), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(values_score(10, after), [rollout(5, 7, 1.0)], BATCH)
    text = "\n".join(printed_lines(run))
    assert ("germline export" in text) is is_clear
    assert ("may have improved by chance" in text) is not is_clear
    is_all_right = set(after) == {1.0}
    assert (f"  germline resume {run.path} generations=20" in text) is not is_all_right
    assert ("More generations or more held-out" in text) is not (is_clear or is_all_right)


def test_without_values_the_intervals_of_both_scores_are_compared(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(10, 0.55), [rollout(5, 7, 1.0)], BATCH)
    text = " ".join(" ".join(printed_lines(run)).split())
    assert "the intervals of the scores before and after training overlap" in text
    assert "germline export" not in text


def test_the_newest_of_equally_good_generations_is_exported(run: RunDirectory) -> None:
    for generation, mean in (0, 0.5), (5, 0.75), (10, 0.75):
        run.write_held_out(score(generation, mean), [rollout(0, 7, 0.0)], BATCH)
    console = terminal()
    print_next_commands(console, run)
    assert f"  germline export {run.path} --out my-model" in console.export_text().splitlines()
