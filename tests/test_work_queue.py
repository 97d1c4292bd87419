"""The backlog of the grader pool: who gets how much, measured with a clock of our own."""

import threading
import time
from functools import partial

import pytest

from germline.graders.pool import GraderPool
from germline.graders.work_queue import LARGEST, LARGEST_GUESS, ResultCollector, WorkQueue
from tests import misbehaving_graders
from tests.hang_limit import HANG_S
from tests.test_grader_pool import FLOOR, RUBRIC, examples


class Job(ResultCollector[object]):
    """A job that nobody finishes here."""

    def __init__(self, *, wanted=True):
        super().__init__(1)
        if not wanted:
            self.future.cancel()


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self):
        return self.now


def taken(backlog):
    piece = backlog.take(0)
    assert piece is not None
    return piece


def learned(item_s):
    """Return a backlog that has seen items take so long."""
    clock = Clock()
    backlog: WorkQueue[object, object] = WorkQueue(clock)
    for _ in range(2):
        backlog.add(Job(), [0])
        piece = taken(backlog)
        with backlog.measured(len(piece.items)):
            clock.now += item_s
    return backlog


def takes(backlog, worker):
    """Tell whether a worker finds a piece for itself."""
    found = []
    thread = threading.Thread(target=lambda: found.append(backlog.take(worker)))
    thread.start()
    while thread.is_alive() and not backlog._changed._waiters:
        time.sleep(0.001)  # it has neither found a piece nor begun to wait for one
    backlog.close()
    thread.join()
    return found != [None]


def test_items_are_handed_out_once_and_in_order():
    backlog, job = learned(0.03), Job()
    backlog.add(job, list("abcdefgh"))
    pieces = [backlog.take(0) for _ in range(3)]
    assert [(piece.start, "".join(piece.items)) for piece in pieces] == [
        (0, "abc"),
        (3, "def"),
        (6, "gh"),
    ]


def test_the_first_item_is_tried_alone_and_the_second_piece_is_small():
    backlog: WorkQueue[object, object] = WorkQueue(Clock())
    backlog.add(Job(), list(range(1000)))
    sizes = []
    for _ in range(3):
        piece = taken(backlog)
        sizes.append(len(piece.items))
        with backlog.measured(len(piece.items)):
            pass
    assert sizes == [1, LARGEST_GUESS, LARGEST]


@pytest.mark.parametrize(("item_s", "size"), [(0.05, 2), (0.2, 1), (0.01, 10), (1e-6, LARGEST)])
def test_a_piece_takes_about_a_tenth_of_a_second(item_s, size):
    backlog = learned(item_s)
    backlog.add(Job(), list(range(1000)))
    assert len(backlog.take(0).items) == size


@pytest.mark.parametrize(
    ("item_s", "items", "workers"), [(1e-5, 1000, 1), (0.05, 4, 1), (0.05, 22, 5)]
)
def test_more_workers_take_part_only_while_grading_lags_behind(item_s, items, workers):
    for worker in (workers - 1, workers):
        backlog = learned(item_s)
        backlog.add(Job(), list(range(items)))
        assert takes(backlog, worker) == (worker < workers)


def test_the_next_worker_takes_part_when_nobody_has_taken_anything_for_long():
    for since_s, worker, found in ((0.3, 1, True), (0.3, 2, False), (0.2, 1, False)):
        backlog = learned(1e-5)
        backlog.add(Job(), ["a"])
        backlog._clock.now += since_s
        assert takes(backlog, worker) is found


def test_a_worker_that_was_needed_once_goes_on_helping():
    backlog = learned(0.05)
    backlog.add(Job(), list(range(100)))
    backlog.take(3)
    while len(backlog.take(0).items) == 2 and backlog._waiting:
        pass
    backlog.add(Job(), ["a", "b", "c"])
    assert backlog.take(3) is not None


def test_items_nobody_waits_for_are_dropped():
    backlog = learned(0.05)
    backlog.add(Job(wanted=False), ["a"])
    backlog.add(Job(), ["b"])
    assert backlog.take(0).items == ["b"]


def running(pool):
    return sum(child._process is not None for child in pool._children)


def open_pool(workers):
    return GraderPool(misbehaving_graders.grade, RUBRIC, FLOOR, workers, timeout_s=30.0)


def test_a_quick_grader_needs_one_process(monkeypatch):
    monkeypatch.setattr("germline.graders.pool.WorkQueue", partial(WorkQueue, Clock()))
    with open_pool(4) as pool:
        pool.submit(["quick"] * 500, examples(500)).result(timeout=HANG_S)
        assert running(pool) == 1


def test_a_slow_grader_gets_more_processes():
    with open_pool(3) as pool:
        grades = pool.submit(["sleep 0.02"] * 120, examples(120)).result(timeout=HANG_S)
        assert running(pool) == 3
    assert [grade.parts["example"] for grade in grades] == list(range(120))
