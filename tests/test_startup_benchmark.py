"""The benchmark of starting up, with a model that is tiny."""

import pytest

from benchmarks import startup
from benchmarks.published_shapes import save_random


def test_both_ways_of_loading_a_model_work(tmp_path):
    save_random("tiny", tmp_path)
    startup.load_with_transformers(str(tmp_path))
    for space in startup.SPACES:
        startup.start(str(tmp_path), space)


def test_every_way_is_compared_with_that_of_transformers(monkeypatch, capsys):
    took = {"transformers": [3.0, 4.0, 2.0], "low_rank": [9.0, 6.0, 6.0], "lora": [9.0, 9.0, 3.0]}
    monkeypatch.setattr(startup, "timed", lambda arguments, _clock: took[arguments[-1]].pop())
    startup.print_loads("tiny", 2, "cpu")
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert rows == [
        "| transformers | 3.50 | 1.00 |",
        "| low_rank | 7.50 | 2.14 |",
        "| lora | 9.00 | 2.57 |",
    ]


def test_a_command_that_fails_has_no_time():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        startup.timed(["-c", "1 / 0"], "cpu")
