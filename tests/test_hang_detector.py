"""When a job counts as hung: learned from the jobs of its kind that ended, without any clock."""

from dataclasses import replace

import pytest

from germline.fleet.engine_queries import LogProbabilitiesQuery
from germline.fleet.hang_detector import HangDetector
from germline.fleet.worker_jobs import ApplyJob, DigestJob, EpisodesJob, GenerateJob
from germline.types import Completion, Decoding, Grade, MeanUpdate, Rollout, Update
from tests.remote_engines import EXAMPLES

DECODING = Decoding(max_new_tokens=40)


def text(tokens):
    return Completion("a" * tokens, (1,) * tokens, "eos", 3)


def generating(members, examples):
    return GenerateJob([None] * members, EXAMPLES[:examples], DECODING)


def playing(members, turns):
    return EpisodesJob([None] * members, EXAMPLES[:2], DECODING, b"", 0, turns)


def scoring(members, tokens):
    return LogProbabilitiesQuery(
        [None] * members, EXAMPLES[:2], [[text(tokens)] * 2 for _ in range(members)]
    )


def applying(*coefficients, skipped=False):
    return ApplyJob(Update(0, 0, 0.1, 0.1, coefficients, skipped=skipped))


def episodes(members, tokens):
    one = Rollout(0, EXAMPLES[0].index, text(tokens), Grade(0.0, {}))
    return [[one] * 2] * members


def detector(factor=10.0, timeout_s=1.0):
    return HangDetector(factor, timeout_s)


def test_a_kind_of_job_has_no_limit_until_one_ended_and_none_without_a_factor():
    hangs, never = detector(), detector(factor=None)
    for one in (hangs, never):
        one.record(generating(1, 1), 5.0)
    assert hangs.limit_s(DigestJob()) is never.limit_s(generating(1, 1)) is None
    assert hangs.limit_s(generating(1, 1)) == 50.0


@pytest.mark.parametrize(("seconds", "limit"), [((3.0, 6.0, 1.0), 60.0), ((7.0, 3.0), 70.0)])
def test_the_limit_is_a_multiple_of_the_slowest_job_or_the_timeout(seconds, limit):
    hangs = detector(timeout_s=60.0)
    for one in seconds:
        hangs.record(DigestJob(), one)
    assert hangs.limit_s(DigestJob()) == limit


LATER = {
    "more rows": (generating(2, 3), None, generating(4, 6), 4),
    "fewer rows": (generating(2, 3), None, generating(1, 1), 1),
    "longer texts": (generating(1, 2), [[text(4), text(8)]], generating(1, 2), 5),
    "more episodes": (playing(2, 3), None, playing(6, 3), 3),
    "more turns": (playing(1, 6), episodes(1, 60), playing(1, 6), 4),
    "more scores": (scoring(1, 20), None, scoring(7, 20), 7),
    "more coefficients": (applying(0.5, 0.0), None, applying(0.5, 0.1, -0.1), 3),
}


@pytest.mark.parametrize(("ended", "result", "later", "times"), LATER.values(), ids=LATER)
def test_more_work_of_a_kind_may_take_longer(ended, result, later, times):
    hangs = detector()
    hangs.record(ended, 2.0, result)
    assert hangs.limit_s(later) == pytest.approx(20.0 * times)


def test_longer_scored_texts_may_take_longer():
    hangs = detector()
    hangs.record(scoring(1, 1), 2.0)
    assert hangs.expected_s(scoring(1, 400)) > 10.0


@pytest.mark.parametrize("idle", [applying(skipped=True), applying(0.0, 0.0)])
def test_an_update_without_signal_says_nothing_about_the_next(idle):
    hangs = detector()
    hangs.record(idle, 0.001)
    assert hangs.limit_s(applying(0.5, -0.5)) is None
    hangs.record(replace(idle, update=MeanUpdate(0, 0.1, ())), 3.0)
    assert hangs.limit_s(ApplyJob(MeanUpdate(1, 0.1, ()))) == 30.0
