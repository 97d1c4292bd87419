"""The verdict of a judge's reply."""

import time

import pytest

from germline.scorers.judge_reply import Reply, read_verdict
from germline.scorers.types import NotScoredError


@pytest.mark.parametrize("line", [" *" * 50_000 + "[[A]] x [[B]]", "a" * 50_000 + ":" * 50_000])
def test_a_long_last_line_is_read_at_once(line):
    began = time.perf_counter()
    with pytest.raises(NotScoredError):
        read_verdict(Reply(line, cut=False), "[AB]", str.upper, "[[A]] or [[B]]")
    assert time.perf_counter() - began < 5.0  # it took a minute
