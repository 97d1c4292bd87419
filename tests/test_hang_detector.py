"""When a job counts as hung: learned from the jobs that ended, without any clock."""

import pytest

from germline.fleet.hang_detector import HangDetector
from germline.fleet.worker_jobs import DigestJob, GenerateJob
from tests.remote_engines import DECODING, EXAMPLES


def generating(members, examples):
    return GenerateJob([None] * members, EXAMPLES[:examples], DECODING)


def test_a_kind_of_job_that_never_ended_has_no_limit():
    hangs = HangDetector(10.0, 1.0)
    hangs.record(generating(1, 1), 5.0)
    assert hangs.limit_s(DigestJob()) is None
    assert hangs.limit_s(generating(1, 1)) == 50.0


def test_without_a_factor_no_job_has_a_limit():
    hangs = HangDetector(None, 1.0)
    hangs.record(DigestJob(), 5.0)
    assert hangs.limit_s(DigestJob()) is None


@pytest.mark.parametrize(("seconds", "limit"), [(1.0, 60.0), (7.0, 70.0)])
def test_the_limit_is_the_multiple_or_the_timeout_whichever_is_longer(seconds, limit):
    hangs = HangDetector(10.0, 60.0)
    hangs.record(DigestJob(), seconds)
    assert hangs.limit_s(DigestJob()) == limit


def test_the_slowest_job_counts():
    hangs = HangDetector(2.0, 1.0)
    for seconds in (3.0, 9.0, 1.0):
        hangs.record(DigestJob(), seconds)
    assert hangs.expected_s(DigestJob()) == 9.0


def test_a_larger_job_may_take_longer_and_a_smaller_one_as_long_as_the_slowest():
    hangs = HangDetector(2.0, 1.0)
    hangs.record(generating(2, 3), 6.0)
    assert hangs.expected_s(generating(4, 6)) == 24.0
    assert hangs.expected_s(generating(1, 1)) == 6.0
