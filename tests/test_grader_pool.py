"""The grader pool: what a text may do to its grader, and what that costs the others."""

import importlib
import math
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import germline
from germline.example import Transcript
from germline.graders import builtin_rewards
from germline.graders.pool import GraderPool, InProcessPool
from germline.types import Example, GermlineError, Grade
from tests import misbehaving_graders
from tests.hang_limit import HANG_S
from tests.toy_runs import settings

RUBRIC = {"good": 2.0, "example": 0.0}
FLOOR = {"good": -1.0, "example": 0.0}
ROOT = Path(__file__).parents[1]


def examples(count):
    return [Example(index=i, prompt="?", answer="!", chat=False) for i in range(count)]


def open_pool(workers=1, timeout_s=30.0):
    return GraderPool(misbehaving_graders.grade, RUBRIC, FLOOR, workers, timeout_s)


def grade(*texts, timeout_s=30.0):
    with open_pool(timeout_s=timeout_s) as pool:
        return pool.submit(texts, examples(len(texts))).result(timeout=HANG_S)


def python(script, folder, **more):
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script), encoding="utf-8")
    command = [sys.executable, str(path)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **more,
    )


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def ends_soon(pid):
    deadline = time.monotonic() + HANG_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_alive(pid)


def test_the_reward_is_the_weighted_sum_and_metrics_weigh_nothing():
    assert grade("four") == [Grade(8.0, {"good": 4.0, "example": 0.0})]


def test_grades_come_back_in_the_order_of_the_texts_from_any_number_of_workers():
    texts = [f"text {'x' * (i % 7)}" for i in range(1000)]
    with open_pool(workers=2) as pool:
        grades = pool.submit(texts, examples(1000)).result(timeout=HANG_S)
    assert [(g.parts["good"], g.parts["example"]) for g in grades] == [
        (len(text), index) for index, text in enumerate(texts)
    ]


def test_several_submits_may_be_outstanding():
    with open_pool(workers=2) as pool:
        futures = [pool.submit(["x" * n, "sleep 0.01"], examples(2)) for n in range(20)]
        assert [f.result(timeout=HANG_S)[0].parts["good"] for f in futures] == list(range(20))


@pytest.mark.parametrize("misdeed", ["loop", "swallow", "loop-in-c", "sleep 9"])
def test_a_text_that_hangs_its_grader_earns_the_floor_and_the_rest_is_graded(misdeed):
    grades = grade("a", misdeed, "b", timeout_s=1.0)
    assert [g.failure for g in grades] == [None, "timeout after 1.0 s", None]
    assert grades[1] == Grade(-2.0, FLOOR, "timeout after 1.0 s")
    assert [grades[0].reward, grades[2].reward] == [2.0, 2.0]


@pytest.mark.parametrize(
    "texts",
    [
        ("loop-in-c", "alarm", "loop", "fine"),
        pytest.param(
            ("loop-in-c", "loop", "alarm", "loop", "loop-in-c", "fine"), marks=pytest.mark.slow
        ),
    ],
)
def test_every_hanging_text_gets_its_own_timeout(texts):
    grades = grade(*texts, timeout_s=1.0)
    assert [g.failure is None for g in grades] == [text in ("alarm", "fine") for text in texts]


def test_a_text_that_makes_the_grader_raise_earns_the_floor_and_says_why():
    grades = grade("raise of the model", "leave", "fine")
    assert [g.failure for g in grades] == ["ValueError: of the model", "SystemExit: bye", None]
    assert [g.reward for g in grades] == [-2.0, -2.0, 8.0]


@pytest.mark.parametrize(("misdeed", "seen"), [("die", "exit status 3"), ("segfault", "SIGSEGV")])
def test_a_text_that_kills_the_grader_twice_earns_the_floor(misdeed, seen):
    grades = grade("a", misdeed, "b")
    assert [g.failure for g in grades] == [None, f"the grader process died twice: {seen}", None]


def test_a_worker_that_died_once_is_tried_again(tmp_path):
    grades = grade("a", f"die-once {tmp_path / 'marker'}", "b")
    assert [g.failure for g in grades] == [None, None, None]


def test_what_a_grader_prints_or_reads_does_not_reach_the_pipes():
    assert [g.failure for g in grade("talk", "a")] == [None, None]


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        ("nan", "finite number for the part 'good', returned nan"),
        ("text", "finite number for the part 'good', returned 'very'"),
        ("less", r"parts \('good', 'example'\), returned {'example': 0}"),
        ("more", "'evil': 2.0"),
    ],
)
def test_a_grader_that_breaks_its_rubric_is_an_error_naming_part_and_value(returned, complaint):
    with pytest.raises(GermlineError, match=complaint):
        grade("a", f"return {returned}")


def test_after_an_error_the_pool_still_grades():
    with open_pool() as pool:
        assert pool.submit(["return nan"], examples(1)).exception(timeout=HANG_S)
        assert pool.submit(["a"], examples(1)).result(timeout=HANG_S)[0].reward == 2.0


def test_importing_the_grader_is_not_charged_to_the_first_text(tmp_path, monkeypatch):
    source = "import time\ntime.sleep(1.0)\ndef grade(text, example):\n    return {'good': 1.0}\n"
    (tmp_path / "slow_to_import.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    slow_to_import = importlib.import_module("slow_to_import")

    with GraderPool(slow_to_import.grade, {"good": 1.0}, {"good": 0.0}, timeout_s=0.9) as pool:
        assert pool.submit(["a"], examples(1)).result(timeout=HANG_S) == [Grade(1.0, {"good": 1.0})]


def test_a_grader_the_worker_cannot_import_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "vanishing.py").write_text("def grade(text, example): ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    vanishing = importlib.import_module("vanishing")

    (tmp_path / "vanishing.py").unlink()
    with (
        GraderPool(vanishing.grade, {"good": 1.0}, {"good": 0.0}) as pool,
        pytest.raises(GermlineError, match=r"vanishing\.grade: ModuleNotFoundError"),
    ):
        pool.submit(["a"], examples(1)).result(timeout=HANG_S)


def test_a_lambda_is_refused_as_a_grader():
    with pytest.raises(GermlineError, match="move the grader to a module"):
        GraderPool(lambda text, example: {"good": 1.0}, {"good": 1.0}, {"good": 0.0})


def test_a_floor_that_does_not_fit_the_rubric_is_refused():
    with pytest.raises(GermlineError, match=r"\['evil'\]"):
        GraderPool(builtin_rewards.grade_length, {"good": 1.0}, {"evil": 0.0})


def test_closing_cancels_what_is_not_graded_and_ends_the_workers():
    with open_pool() as pool:
        worker = pool.submit(["pid"], examples(1)).result(timeout=HANG_S)[0].parts["good"]
        busy = pool.submit(["loop-in-c"], examples(1))
        queued = pool.submit(["a"], examples(1))
    assert busy.cancelled()
    assert queued.cancelled()
    assert not is_alive(int(worker))
    with pytest.raises(GermlineError, match="closed"):
        pool.submit(["a"], examples(1))


def test_closing_removes_an_empty_file_of_output_and_nothing_that_is_no_file(tmp_path):
    file, pipe = tmp_path / "output", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)  # in the place of /dev/null, which a pool of root's has removed
    for output in (file, pipe):
        with open_pool() as pool:
            pool.redirect_output(output)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_script_without_a_main_guard_can_grade(tmp_path):
    script = """
        from germline.graders import builtin_rewards
        from germline.graders.pool import GraderPool
        from germline.types import Example

        with GraderPool(builtin_rewards.grade_exact, {"exact": 1.0}, {"exact": 0.0}) as pool:
            print(pool.submit(["8"], [Example(0, "?", "8", False)]).result()[0].reward)
    """
    with python(script, tmp_path) as process:
        assert process.communicate(timeout=HANG_S)[0] == "1.0\n"


def test_a_grader_defined_in_the_script_itself_is_refused_with_a_remedy(tmp_path):
    script = """
        from germline.graders.pool import GraderPool
        from germline.types import GermlineError

        def grade(text, example):
            return {"good": 1.0}

        try:
            GraderPool(grade, {"good": 1.0}, {"good": 0.0})
        except GermlineError as error:
            print(error)
    """
    with python(script, tmp_path) as process:
        assert "move the grader to a module" in process.communicate(timeout=HANG_S)[0]


@pytest.mark.parametrize("work", ["", "sleep 60", "loop-in-c"])
def test_a_worker_does_not_outlive_a_parent_that_is_killed(tmp_path, work):
    script = f"""
        import time
        from germline.graders.pool import GraderPool
        from germline.types import Example
        from tests import misbehaving_graders

        example = Example(0, "?", "8", False)
        rubric = {{"good": 1.0, "example": 0.0}}
        with GraderPool(misbehaving_graders.grade, rubric, rubric, timeout_s=60.0) as pool:
            print(int(pool.submit(["pid"], [example]).result()[0].reward), flush=True)
            if {work!r}:
                pool.submit([{work!r}], [example])
            time.sleep(60)
    """
    with python(script, tmp_path) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        time.sleep(0.3)  # the worker takes up the text
        assert is_alive(worker)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=HANG_S)
        assert ends_soon(worker)


def test_four_thousand_texts_cost_the_parent_a_few_calls_each():
    texts, asked = ["some text"] * 4000, examples(32) * 125
    calls: Counter[str] = Counter()

    def count(frame, event, _argument):
        if event == "call" and "germline/graders/" in frame.f_code.co_filename:
            calls[frame.f_code.co_name] += 1

    threading.setprofile(count)  # of the threads that serve the workers, started below
    try:
        with GraderPool(
            builtin_rewards.grade_length,
            {"length": 1.0, "length_difference": 0.0},
            {"length": 0.0, "length_difference": 0.0},
        ) as pool:
            pool.submit(texts, asked).result(timeout=HANG_S)
    finally:
        threading.setprofile(None)
    assert len(texts) <= calls.total() < 3 * len(texts)


def test_graders_and_tasks_load_without_torch():
    script = (
        "import sys, germline.graders.pool, germline.graders.worker_process, "
        "germline.tasks.countdown, "
        "germline.tasks.conciseness, germline.tasks.arithmetic\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


def test_a_grader_process_starts_without_numpy():
    """It then starts in a quarter of the time, with a third of the memory."""
    script = (
        "import sys, germline.graders.worker_process, germline.graders.builtin_rewards, "
        "germline.graders.task_file, germline.environments.grader\n"
        "print({'numpy', 'jaxtyping', 'pydantic', 'importlib.metadata'} & set(sys.modules))"
    )
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "set()\n"


def test_grader_processes_end_with_the_training(tmp_path):
    before = children()
    working = [children() for _ in germline.train(settings(), tmp_path / "run")]
    assert all(processes - before for processes in working)
    assert not children() - before


def children():
    """Return the processes that the threads of this one started and have not yet buried."""
    threads = Path("/proc/self/task").glob("*/children")
    return {child for thread in threads for child in thread.read_text().split()}


@pytest.mark.slow
def test_a_machine_that_stands_still_fails_no_text(tmp_path):
    timeout_s, marker = 4.0, tmp_path / "marker"
    script = f"""
        from tests.test_grader_pool import grade
        print(grade("note-and-sleep {marker}", timeout_s={timeout_s})[0].failure)
        """
    with python(script, tmp_path) as process:
        deadline = time.monotonic() + HANG_S
        while not marker.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        both = process.pid, int(marker.read_text())
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(timeout_s + 1.0)
        for pid in reversed(both):
            os.kill(pid, signal.SIGCONT)
        assert process.communicate(timeout=HANG_S)[0].split() == ["None"]


# episodes, turn by turn


def play(*replies, timeout_s=30.0, is_final=False, prompt="?"):
    example = Example(index=4, prompt=prompt, answer="", chat=False)
    transcript = Transcript(replies, seed=7, is_final=is_final)
    with GraderPool(
        misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=timeout_s, max_turns=3
    ) as pool:
        return pool.submit([transcript], [example]).result(timeout=HANG_S)[0]


def test_an_episode_is_answered_with_a_message_until_it_has_ended():
    starts, goes_on, ends = play(), play("hello"), play("hello", "end")
    assert [starts.observation, goes_on.observation, ends.observation] == ["seed 7", "turn 1", None]
    assert math.isnan(starts.reward)
    assert math.isnan(goes_on.reward)
    assert goes_on.failure is None
    assert ends == Grade(6.0, {"good": 3.0, "example": 4.0})
    assert play("hello", is_final=True).reward == 10.0


def test_an_environment_that_goes_on_after_the_last_turn_is_an_error():
    with pytest.raises(GermlineError, match=r"is_final.*'turn 1'.*seed 7, last reply 'cut me'"):
        play("cut me", is_final=True)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        ("raise of the model", "ValueError: of the model"),
        ("loop", "timeout after 1.0 s"),
        ("die", "the grader process died twice: exit status 3"),
    ],
)
def test_a_reply_that_breaks_its_environment_earns_the_floor(reply, failure):
    assert play("a", reply, timeout_s=1.0) == Grade(-2.0, FLOOR, failure)


@pytest.mark.parametrize("misdeed", ["raise", "loop", "die"])
def test_an_environment_that_fails_before_the_first_reply_is_an_error(misdeed):
    with pytest.raises(GermlineError, match=r"fails before the model's first reply.*example 4"):
        play(prompt=misdeed, timeout_s=1.0)


def test_a_text_is_the_only_reply_of_its_episode():
    example = Example(index=0, prompt="?", answer="", chat=False)
    pool = InProcessPool(misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=9.0, max_turns=3)
    with pytest.raises(TypeError, match="InProcessPool cannot be pickled"):
        pickle.dumps(pool)
    with pool:
        (as_text,) = pool.submit(["hello"], [example]).result()
        (started,) = pool.submit([Transcript((), 3)], [example]).result()
    assert as_text.reward == 10.0
    assert started.observation == "seed 3"
