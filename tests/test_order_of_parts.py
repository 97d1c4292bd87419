"""The order in which a config names the parts of a reward: their sum, and which is the metric."""

import pytest

import germline
from germline.config import load_config
from germline.record import RunDirectory
from tests.toy_runs import SETTINGS, finish, journal, stopped_after


@pytest.mark.usefixtures("graded_in_process")
def test_a_resumed_run_has_the_parts_of_its_reward_in_the_order_of_the_config(tmp_path):
    scorers = {
        "zz": {"kind": "length", "start": 0, "end": 17, "weight": -0.3},
        "mm": {"kind": "repetition", "ngram": 1, "weight": -0.3},
        "aa": {"kind": "length", "start": 1, "end": 11, "weight": -0.1},
        "bb": {"kind": "length", "start": 2, "end": 7, "weight": -0.07},
    }
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Say {n}"}}\n' for n in range(20)))
    task = {"kind": "jsonl", "path": str(prompts), "reward": {}, "scorers": scorers}
    decoding = {"max_new_tokens": 24, "temperature": 1.0}
    config = load_config({**SETTINGS, "task": {**task, **decoding}}, ("generations=6",))
    whole = RunDirectory.open(finish(germline.train(config, tmp_path / "whole")))
    stopped = stopped_after(germline.train(config, tmp_path / "stopped"), 2)
    resumed = RunDirectory.open(finish(germline.resume(stopped)))
    assert list(resumed.config.task.scorers) == [*scorers]
    assert {row.score.metric for row in resumed.held_out()} == {"zz"}
    assert journal(resumed.path) == journal(whole.path)
    again = finish(germline.train(whole.path / "run.json", tmp_path / "again"))
    assert journal(again) == journal(whole.path)
