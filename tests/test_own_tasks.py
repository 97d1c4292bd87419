"""Tasks made of a Python file: what it may hold, how mistakes are told, what rewards may do."""

import json
import sys
import textwrap

import pytest

import germline
from germline.config import load_config
from germline.graders.pool import GraderPool
from germline.run.build_parts import make_graders
from germline.tasks import make_task
from germline.types import GermlineError
from tests.hang_limit import HANG_S
from tests.toy_runs import finish, settings, stopped_after

ROWS = "train = [{'prompt': f'{n}?', 'answer': str(n)} for n in range(10)]\n"
RIGHT = "def reward(completion, example):\n    return completion == example['answer']\n"


def written(folder, *parts, name="digits.py"):
    path = folder / name
    path.write_text("".join(textwrap.dedent(part) for part in parts), encoding="utf-8")
    return path


def task(path, *overrides):
    return make_task(load_config({"task": str(path)}, [f"task.{one}" for one in overrides]).task)


def graded(path, *texts, overrides=()):
    """Grade texts on the first training example, in a worker."""
    config = load_config({"task": str(path), "graders": {"timeout_s": 5.0}}, overrides)
    made = make_task(config.task)
    with make_graders(config, made) as pool:
        return pool.submit(texts, [made.examples("train")[0]] * len(texts)).result(timeout=HANG_S)


# --- what a file may hold


def test_a_file_of_rows_and_a_reward_is_a_task(tmp_path):
    made = task(written(tmp_path, ROWS, RIGHT))
    assert [len(made.examples(split)) for split in ("train", "test")] == [8, 2]
    assert (made.name, made.rubric, made.floor) == ("digits", {"reward": 1.0}, {"reward": 0.0})
    assert (made.metric, made.max_new_tokens, made.stop) == ("reward", 128, ())
    example = made.examples("test")[0]
    assert example.prompt == f"{example.answer}?"
    assert made.grader(example.answer, example) == {"reward": 1.0}


def test_rows_may_come_from_functions_and_test_rows_be_given(tmp_path):
    source = """
        def train():
            yield {"prompt": "1?", "answer": 1}
        def test():
            return ({"prompt": "2?"},)
    """
    made = task(written(tmp_path, source, RIGHT))
    assert [(one.prompt, one.answer) for one in made.examples("train")] == [("1?", "1")]
    assert [(one.prompt, one.answer) for one in made.examples("test")] == [("2?", "")]


def test_a_rubric_weighs_several_functions(tmp_path):
    source = """
        def right(completion, example):
            return completion == example["answer"]
        def letters(completion, example):
            return len(completion)
        rubric = {right: 2.0, letters: -0.5}
        settings = {"floor": {"letters": 1000}}
    """
    made = task(written(tmp_path, ROWS, source))
    assert made.rubric == {"right": 2.0, "letters": -0.5}
    assert made.floor == {"right": 0.0, "letters": 1000.0}
    assert made.metric == "right"
    (grade,) = graded(written(tmp_path, ROWS, source), "some")
    assert (grade.reward, grade.parts) == (-2.0, {"right": 0.0, "letters": 4.0})


def test_a_file_says_how_it_wants_to_be_played_and_the_config_has_the_last_word(tmp_path):
    source = """
        settings = {"max_new_tokens": 7, "stop": ["\\n"], "chat": False, "floor": -1,
                    "template": "Digit {prompt}"}
    """
    path = written(tmp_path, ROWS, RIGHT, source)
    made = task(path)
    assert (made.max_new_tokens, made.stop, made.floor) == (7, ("\n",), {"reward": -1.0})
    example = made.examples("train")[0]
    assert not example.chat
    assert example.prompt.startswith("Digit ")
    made = task(path, "max_new_tokens=3", "stop=[]", "chat=true", "template={answer}")
    example = made.examples("train")[0]
    assert (made.max_new_tokens, made.stop, example.chat) == (3, (), True)
    assert example.prompt == example.answer


def test_a_worker_takes_the_weights_that_the_file_had_in_the_main_process(tmp_path, monkeypatch):
    monkeypatch.setenv("COST", "-0.5")  # which no grader process gets
    source = """
        import os
        def length(completion, example):
            return len(completion)
        rubric = {length: float(os.environ.get("COST", "1"))}
        settings = {"floor": 1000}
    """
    (grade,) = graded(written(tmp_path, ROWS, source), "some")
    assert (grade.reward, grade.failure) == (-2.0, None)


def test_a_file_may_import_what_lies_beside_it(tmp_path):
    written(tmp_path, "ANSWER = 'beside'\n", name="lies_beside.py")
    source = """
        import lies_beside
        def reward(completion, example):
            return completion == lies_beside.ANSWER
    """
    assert graded(written(tmp_path, ROWS, source), "beside")[0].reward == 1.0


def test_a_file_may_be_named_like_a_module_and_may_define_dataclasses(tmp_path):
    source = """
        from __future__ import annotations
        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
        def reward(completion, example):
            return Point(1).x
    """
    assert graded(written(tmp_path, source, ROWS, name="json.py"), "a")[0].reward == 1.0
    assert sys.modules["json"] is json


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_reward_may_start_processes_that_import_the_file(tmp_path, method):
    source = f"""
        import multiprocessing
        def double(number):
            return 2 * number
        def reward(completion, example):
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                return pool.apply(double, (4,))
    """
    path = written(tmp_path, ROWS, source, name="with-dash.py")
    made = task(path, "split_seed=1")
    with GraderPool(made.grader, made.rubric, made.floor, timeout_s=HANG_S) as pool:
        (grade,) = pool.submit(["a"], made.examples("train")[:1]).result(timeout=HANG_S)
    assert (grade.failure, grade.reward) == (None, 8.0)


@pytest.mark.parametrize("named", [[], ["JUDGE_API_KEY"]])
def test_a_reward_sees_no_secrets_but_those_that_are_named(tmp_path, monkeypatch, named):
    for name in ("HF_TOKEN", "JUDGE_API_KEY", "AWS_SECRET_ACCESS_KEY", "PATHLIKE"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    source = """
        import os
        def reward(completion, example):
            assert {"PATH", "LC_ALL"} <= os.environ.keys()
            return float(str([k for k, v in os.environ.items() if v == "secret"]) == completion)
    """
    settings = [f"graders.variables={name}" for name in named]
    (grade,) = graded(written(tmp_path, ROWS, source), str(named), overrides=settings)
    assert (grade.failure, grade.reward) == (None, 1.0)


def test_a_reward_cannot_change_the_row_of_the_next_completion(tmp_path):
    source = """
        train = [{"prompt": f"{n}?", "left": [1, 2]} for n in range(5)]
        def reward(completion, example):
            return example["left"].pop()
    """
    # Several texts, as those that are sent together share their example.
    assert [one.reward for one in graded(written(tmp_path, source), *"abcdef")] == [2.0] * 6


# --- mistakes in the file


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        (ROWS, r"digits\.py: define `reward\(completion, example\)` or .*found neither"),
        (ROWS + "def rewrad(c, e): ...", r"found neither \(did you mean 'rewrad'\?\)"),
        (ROWS + RIGHT + "rubric = {reward: 1}", "found both"),
        (ROWS + "reward = [1]", r"digits\.py: a reward must be a function, found 1"),
        (ROWS + "rubric = [len]", r"`rubric` must be \{function: weight\}, found \["),
        (RIGHT, r"there are no examples: define `train = \[\.\.\.\]`"),
        ("train = []\n" + RIGHT, "`train` holds no rows; add at least one example"),
        ("train = ['a']\n" + RIGHT, r"train row 0: a row must be a mapping .* found 'a'"),
        ("train = [{'prompt': {1}}]\n" + RIGHT, "train row 0: a row must be plain data"),
        (
            "def train():\n    return 1 / 0\n" + RIGHT,
            r"digits\.py, line 2: the rows of `train` cannot be loaded: ZeroDivisionError",
        ),
        (
            RIGHT + "deep = []\nfor _ in range(10**5): deep = [deep]\ntrain = [{'prompt': deep}]",
            "train row 0: a row must be plain data .*recursion",
        ),
        ("def reward(:\n", r"digits\.py, line 1: cannot be loaded: SyntaxError"),
        ("import sys\nsys.exit('bye')\n", r"digits\.py, line 2: cannot be loaded: SystemExit: bye"),
        (ROWS + RIGHT + "settings = 5", r"`settings` must be a mapping, found 5"),
        (
            ROWS + RIGHT + "settings = {'stopped': 1}",
            r"settings\.stopped: unknown setting \(did you mean 'stop'",
        ),
        (ROWS + RIGHT + "settings = {'metric': 'x'}", r"settings\['metric'\] is 'x'.*are reward"),
        (ROWS + RIGHT + "settings = {'floor': {'x': 1}}", r"settings\['floor'\] names 'x'"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_place(tmp_path, source, complaint):
    with pytest.raises(GermlineError, match=rf"(?s){complaint}"):
        task(written(tmp_path, source))


# --- what a reward may do


def misbehaving(body):
    return f"import os, sys, time\ndef reward(completion, example):\n    {body}\n"


TWO = """
    def right(completion, example):
        return completion == example["answer"]
    def brief(completion, example):
        return {body}
    rubric = {{right: 1.0, brief: 0.5}}
    settings = {{"floor": {{"brief": -2.0}}}}
"""


def test_a_function_of_a_rubric_that_raises_floors_its_own_part_alone(tmp_path):
    path = written(tmp_path, ROWS, TWO.format(body="1 / (len(completion) - 1)"))
    answer = task(path).examples("train")[0].answer
    fine, failed = graded(path, "no", answer)
    assert (fine.parts, fine.failure) == ({"right": 0.0, "brief": 1.0}, None)
    assert (failed.parts, failed.reward) == ({"right": 1.0, "brief": -2.0}, 0.0)
    assert failed.failure == "brief(): ZeroDivisionError: division by zero (digits.py, line 6)"


def trained(path, folder):
    return finish(germline.train(toy(path, "generations=1"), folder))


def test_a_run_keeps_what_rewards_print_in_a_file(tmp_path, capfd):
    body = "import sys; print('seen', '\\ud800'); print('also', file=sys.stderr); return 1"
    run = trained(written(tmp_path, ROWS, misbehaving(body)), tmp_path / "loud")
    lines = (run / "graders.log").read_text(encoding="utf-8").splitlines()
    assert set(lines) == {"seen \\ud800", "also"}
    assert capfd.readouterr().err.count("seen") <= 16  # the check before the run begins
    run = trained(written(tmp_path, ROWS, misbehaving("return 1")), tmp_path / "quiet")
    assert not (run / "graders.log").exists()


def test_a_worker_refuses_a_file_that_was_changed_since(tmp_path):
    path = written(tmp_path, ROWS, RIGHT)
    made = task(path)
    written(tmp_path, ROWS, RIGHT, "# changed\n")
    with (
        GraderPool(made.grader, made.rubric, made.floor) as pool,
        pytest.raises(GermlineError, match=r"digits\.py was changed while it was in use"),
    ):
        pool.submit(["a"], made.examples("train")[:1]).result(timeout=HANG_S)


# --- runs


LENGTH = "def reward(completion, example):\n    return len(completion)\n"


def toy(path, *overrides):
    return settings(f"task={{kind: {path}, max_new_tokens: 8, temperature: 1.0}}", *overrides)


@pytest.mark.usefixtures("graded_in_process")
def test_a_run_on_a_file_trains_is_named_after_it_and_goes_on_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, ROWS, LENGTH)
    whole = finish(germline.train(toy("digits.py"), tmp_path / "whole"))
    training = germline.train(toy("digits.py"))
    assert training.directory.path.name.startswith("digits-low_rank-")
    path = stopped_after(training, 2).resolve()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    finish(germline.resume(path))
    assert (path / "journal.jsonl").read_bytes() == (whole / "journal.jsonl").read_bytes()


@pytest.mark.usefixtures("graded_in_process")
def test_a_run_on_a_file_replays_without_it(tmp_path):
    path = written(tmp_path, ROWS, LENGTH)
    run = finish(germline.train(toy(path), tmp_path / "run"))
    path.unlink()
    assert germline.replay(run, 3)


@pytest.mark.usefixtures("graded_in_process")
@pytest.mark.parametrize("change", [ROWS + LENGTH + "#", ROWS.replace("10", "11") + LENGTH])
def test_a_file_that_has_changed_is_refused(tmp_path, change):
    path = written(tmp_path, ROWS, LENGTH)
    run = stopped_after(germline.train(toy(path), tmp_path / "run"), 2)
    path.write_text(change)
    for go_on in (germline.resume, germline.evaluate):
        with pytest.raises(GermlineError, match=r"task\.digest=.* have changed since"):
            go_on(str(run))
    score, _ = germline.evaluate(str(run), load_config({"task": str(path)}).task)
    assert score.n == 2


def test_rows_that_a_file_reads_elsewhere_are_part_of_its_digest(tmp_path):
    source = "import pathlib\ntrain = lambda: [{'prompt': one} for one in pathlib.Path(__file__)"
    source += ".with_name('words.txt').read_text().split()]\n"
    path = written(tmp_path, source, LENGTH)
    (tmp_path / "words.txt").write_text("some words")
    first = task(path).digest
    (tmp_path / "words.txt").write_text("other words")
    assert task(path).digest != first
