"""Items of several calls in batches: their order, errors, and how many threads take part."""

import threading

import pytest

from germline.graders.batch_queue import BatchQueue
from germline.graders.pool import GraderPool
from tests import misbehaving_graders
from tests.hang_limit import HANG_S
from tests.test_grader_pool import FLOOR, RUBRIC, examples


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


def open_pool(workers):
    return GraderPool(misbehaving_graders.grade, RUBRIC, FLOOR, workers, timeout_s=30.0)


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
