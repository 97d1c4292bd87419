"""Signals of a method whose center is sampled: what is said of samples, not of members."""

from germline.config import load_config
from germline.record.metrics_rows import generation_row
from germline.report import signal_charts
from germline.report.advice import WINDOW, advice, without_update
from tests.test_report_signals import rows, tied


def of_samples(found, **metrics):
    return [{**row, **metrics} for row in found]


def test_samples_that_tie_are_not_said_to_need_a_larger_sigma():
    found = of_samples([generation_row(one) for one in tied(3)], groups_without_signal=1.0)
    said = advice(found)["no signal"]
    assert "all samples of a prompt earn the same reward: raise method.temperature" in said
    assert "sigma" not in said
    alone = without_update(found, load_config({"method": "zo_grpo"}))
    assert alone.startswith("In every generation all samples of each prompt had the same")


def test_advice_on_samples_names_settings_of_the_method():
    few = advice(of_samples(rows(WINDOW), groups_without_signal=0.95))
    assert few["no signal"].startswith("samples differ on 5 % of the examples: raise method.temp")
    noisy = advice(of_samples(rows(WINDOW, agreement=0.0), groups_without_signal=0.0))
    assert "a larger batch_size or method.group_size" in noisy["agreement"]
    empty = advice(of_samples(rows(WINDOW, empty=0.9), groups_without_signal=0.0))
    assert "sigma" not in empty["empty"]


def test_the_chart_and_the_table_of_samples_show_groups_instead_of_members():
    metrics = {"groups_without_signal": 0.25, "truncated": 0.5, "entropy": 0.1}
    found = of_samples(rows(2), **metrics)
    names = [reading.name for reading in signal_charts.signal_readings(found)]
    assert names[:3] == ["prompts whose samples tie", "entropy", "truncated samples"]
    assert "examples that tell members apart" not in names
    assert "prompts whose samples tie go from 25 %" in signal_charts.signal_charts(found)[0].alt
