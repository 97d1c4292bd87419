"""The grader pool: what a text may do to its grader, and what that costs the others."""

import importlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import germline
from germline.example import Transcript
from germline.graders import builtin_rewards
from germline.graders.batch_queue import BatchQueue
from germline.graders.pool import GraderPool, InProcessPool
from germline.graders.worker_messages import GraderSetup, InvalidGradeError, PartsFailedError
from germline.graders.worker_process import GradingLoop
from germline.types import Example, GermlineError, Grade
from tests import misbehaving_graders
from tests.hang_limit import HANG_S, wait_until
from tests.toy_runs import settings

RUBRIC = {"good": 2, "example": 0}
FLOOR = {"good": -1, "example": 0}
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


def test_grades_come_back_in_the_order_of_the_texts_from_any_number_of_workers():
    texts = [f"text {'x' * (i % 7)}" for i in range(1000)]
    with open_pool(workers=2) as pool:
        grades = pool.submit(texts, examples(1000)).result(timeout=HANG_S)
        futures = [pool.submit(["x" * n, "sleep 0.01"], examples(2)) for n in range(20)]
        assert [f.result(timeout=HANG_S)[0].parts["good"] for f in futures] == list(range(20))
    assert [(g.parts["good"], g.parts["example"]) for g in grades] == [
        (len(text), index) for index, text in enumerate(texts)
    ]


def test_what_a_text_does_to_its_grader_costs_that_text_the_floor(tmp_path):
    done = {
        "four": None,
        "raise of the model": "ValueError: of the model",
        "leave": "SystemExit: bye",
        "die": "the grader process died twice: exit status 3",
        f"die-once {tmp_path / 'marker'}": None,
        "segfault": "the grader process died twice: SIGSEGV",
        "talk": None,
        "fine": None,
    }
    grades = grade(*done)
    assert [one.failure for one in grades] == [*done.values()]
    assert grades[0] == Grade(8.0, {"good": 4.0, "example": 0.0})  # metrics weigh nothing
    assert {one.reward for one in grades if one.failure} == {-2.0}


def test_a_child_that_a_grader_forks_neither_holds_its_worker_nor_grades(tmp_path):
    marker = tmp_path / "child"
    with open_pool(timeout_s=HANG_S) as pool:
        texts = ("a", f"fork {marker}", "b", "fork-and-return", "c", "four")
        grades = pool.submit(texts, examples(len(texts))).result(timeout=HANG_S)
        assert not is_alive(marker.read_text(encoding="utf-8"))
    assert grades[1].failure == "the grader process died twice: exit status 4"
    assert [one.reward for one in grades] == [2.0, -2.0, 2.0, 30.0, 2.0, 8.0]


def test_every_text_that_hangs_its_grader_earns_the_floor_and_the_rest_is_graded():
    texts = ("a", "loop", "swallow", "b", "loop-in-c", "alarm", "sleep 9", "fine")
    grades = grade(*texts, timeout_s=1.0)
    for text, one in zip(texts, grades, strict=True):
        if text in ("a", "b", "alarm", "fine"):
            assert one.reward == 2.0 * len(text)
        else:
            assert one == Grade(-2.0, FLOOR, "timeout after 1.0 s")


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
    with open_pool() as pool:
        with pytest.raises(GermlineError, match=complaint):
            pool.submit(["a", f"return {returned}"], examples(2)).result(timeout=HANG_S)
        assert pool.submit(["a"], examples(1)).result(timeout=HANG_S)[0].reward == 2.0


@pytest.mark.parametrize(("weight", "floor", "value"), [(2.0, -1.0, -3.0), (-1.0, 0.0, 2.0)])
def test_a_part_below_its_floor_is_an_error_also_where_another_fails(weight, floor, value):
    def whole(text, example):
        return {"part": value, "other": 1.0}

    def partly(text, example):
        raise PartsFailedError({"part": value}, "other fails")

    setup = GraderSetup(b"", {"part": weight, "other": 1.0}, {"part": floor, "other": 0.0}, 1.0)
    for grader in (whole, partly):
        verdict = GradingLoop(grader, setup, timed=False).grade(("text", examples(1)[0]))
        assert isinstance(verdict, InvalidGradeError)
        assert f"gave {value:g} for the part 'part', worse than its floor {floor:g}" in str(verdict)
        assert ("as its weight is negative" in str(verdict)) == (weight < 0)


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


def test_what_a_worker_could_not_import_and_a_floor_of_other_parts_are_refused():
    def of_script(text, example): ...

    of_script.__module__ = "__main__"
    for grader in (of_script, lambda text, example: {"good": 1.0}):
        with pytest.raises(GermlineError, match="move the grader to a module"):
            GraderPool(grader, {"good": 1.0}, {"good": 0.0})
    with pytest.raises(GermlineError, match=r"\['evil'\]"):
        GraderPool(builtin_rewards.grade_length, {"good": 1.0}, {"evil": 0.0})


def test_closing_cancels_what_is_not_graded_and_ends_the_workers():
    with open_pool() as pool:
        worker = pool.submit(["pid"], examples(1)).result(timeout=HANG_S)[0].parts["good"]
        busy = pool.submit(["loop-in-c"], examples(1))
        queued = pool.submit(["a"], examples(1))
    assert busy.cancelled() or isinstance(busy.exception(HANG_S), GermlineError)
    assert queued.cancelled()
    assert not is_alive(int(worker))
    with pytest.raises(GermlineError, match="this pool is closed"):
        pool.submit(["a"], examples(1)).result()


def test_closing_removes_an_empty_file_of_output_and_nothing_that_is_no_file(tmp_path):
    file, pipe = tmp_path / "output", tmp_path / "pipe"
    file.touch()
    os.mkfifo(pipe)  # in the place of /dev/null, which a pool of root's has removed
    for output in (file, pipe):
        with open_pool() as pool:
            pool.redirect_output(output)
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_worker_of_a_script_does_not_outlive_a_parent_that_is_killed(tmp_path):
    script = """
        import time
        from germline.graders.pool import GraderPool
        from germline.types import Example
        from tests import misbehaving_graders

        example = Example(0, "?", "8", False)
        rubric = {"good": 1.0, "example": 0.0}
        with GraderPool(misbehaving_graders.grade, rubric, rubric, timeout_s=60.0) as pool:
            print(int(pool.submit(["pid"], [example]).result()[0].reward), flush=True)
            pool.submit(["loop-in-c"], [example])
            time.sleep(60)
    """
    with python(script, tmp_path) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        time.sleep(0.3)  # the worker takes up the text
        assert is_alive(worker)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=HANG_S)
        wait_until(lambda: not is_alive(worker))


def test_grader_processes_end_with_the_training(tmp_path):
    before = children()
    working = [children() for _ in germline.train(settings(), tmp_path / "run")]
    assert all(processes - before for processes in working)
    assert not children() - before


def children():
    """Return the processes that the threads of this one started and have not yet buried."""
    threads = Path("/proc/self/task").glob("*/children")
    return {child for thread in threads for child in thread.read_text().split()}


def test_a_machine_that_stands_still_fails_no_text(tmp_path):
    timeout_s, marker = 4.0, tmp_path / "marker"
    script = f"""
        from tests.test_grader_pool import grade
        print(grade("note-and-sleep {marker}", timeout_s={timeout_s})[0].failure)
        """
    with python(script, tmp_path) as process:
        wait_until(marker.exists)
        both = process.pid, int(marker.read_text())
        for pid in both:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(timeout_s + 1.0)
        for pid in reversed(both):
            os.kill(pid, signal.SIGCONT)
        assert process.communicate(timeout=HANG_S)[0].split() == ["None"]


# episodes, turn by turn


@pytest.fixture(scope="module")
def play():
    with GraderPool(misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=30.0, max_turns=3) as pool:

        def played(*replies, is_final=False, prompt="?"):
            example = Example(index=4, prompt=prompt, answer="", chat=False)
            transcript = Transcript(replies, seed=7, is_final=is_final)
            return pool.submit([transcript], [example]).result(timeout=HANG_S)[0]

        yield played


def test_an_episode_is_answered_with_a_message_until_it_has_ended(play):
    starts, goes_on, ends = play(), play("hello"), play("hello", "end")
    assert [starts.observation, goes_on.observation, ends.observation] == ["seed 7", "turn 1", None]
    assert math.isnan(starts.reward)
    assert math.isnan(goes_on.reward)
    assert goes_on.failure is None
    assert ends == Grade(6.0, {"good": 3.0, "example": 4.0})
    assert play("hello", is_final=True).reward == 10.0


def test_an_environment_that_goes_on_after_the_last_turn_is_an_error(play):
    with pytest.raises(GermlineError, match=r"is_final.*'turn 1'.*seed 7, last reply 'cut me'"):
        play("cut me", is_final=True)


@pytest.mark.parametrize("misdeed", ["raise", "die"])
def test_an_environment_that_fails_before_the_first_reply_is_an_error(misdeed, play):
    with pytest.raises(GermlineError, match=r"fails before the model's first reply.*example 4"):
        play(prompt=misdeed)


def test_a_text_is_the_only_reply_of_its_episode():
    example = Example(index=0, prompt="?", answer="", chat=False)
    pool = InProcessPool(misbehaving_graders.play, RUBRIC, FLOOR, timeout_s=9.0, max_turns=3)
    with pool:
        (as_text,) = pool.submit(["hello"], [example]).result()
        (started,) = pool.submit([Transcript((), 3)], [example]).result()
    assert as_text.reward == 10.0
    assert started.observation == "seed 3"


def test_items_of_several_calls_share_batches_and_results_keep_their_order():
    started, release = threading.Event(), threading.Event()
    batches = []

    def process(items):
        batches.append(items)
        started.set()
        release.wait(HANG_S)
        return [item * 10 for item in items]

    queue = BatchQueue([process], batch_size=3, name="test")
    first = queue.submit([1])
    started.wait(HANG_S)
    dropped = queue.submit([9])
    dropped.cancel()
    others = [queue.submit([2, 3]), queue.submit([4, 5]), queue.submit([])]
    release.set()
    assert first.result(HANG_S) == [10]
    assert [future.result(HANG_S) for future in others] == [[20, 30], [40, 50], []]
    assert batches == [[1], [2, 3, 4], [5]]
    queue.close()
    queue.join()


def test_an_error_reaches_every_call_of_its_batch_and_the_queue_goes_on():
    def process(items):
        return [1 / item for item in items]

    queue = BatchQueue([process] * 2, batch_size=8, name="test")
    with pytest.raises(ZeroDivisionError):
        queue.submit([1, 0]).result(HANG_S)
    assert queue.submit([2]).result(HANG_S) == [0.5]
    queue.close()
    assert queue.submit([2]).cancelled()
    without_threads: BatchQueue[int, float] = BatchQueue([], batch_size=1, name="test")
    waiting = without_threads.submit([1])
    without_threads.close()
    assert waiting.cancelled()


def test_batches_become_smaller_towards_the_end_where_threads_join_one_after_the_other():
    sizes = []

    def process(items):
        sizes.append(len(items))
        return items

    queue = BatchQueue([process] * 2, batch_size=5, name="test", lag_s=HANG_S)
    assert queue.submit(range(24)).result(HANG_S) == list(range(24))
    assert sizes == [5, 5, 4, 3, 2, 2, 1, 1, 1]
    queue.close()


def processes(pool):
    return sum(child._process is not None for child in pool._children)


def test_a_quick_grader_needs_one_process(monkeypatch):
    monkeypatch.setattr("germline.graders.pool.LAG_S", HANG_S)
    with open_pool(4) as pool:
        pool.submit(["quick"] * 500, examples(500)).result(timeout=HANG_S)
        assert processes(pool) == 1


def test_a_slow_grader_gets_more_processes():
    with open_pool(3) as pool:
        grades = pool.submit(["sleep 0.02"] * 120, examples(120)).result(timeout=HANG_S)
        assert processes(pool) == 3
    assert [grade.parts["example"] for grade in grades] == list(range(120))
