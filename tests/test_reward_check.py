"""What the start of a run finds wrong with a custom reward, and what it recommends."""

from unittest import mock

import pytest

import germline
from germline.run.build_parts import make_graders
from germline.run.preflight import check_custom_reward
from germline.tasks import make_task
from germline.tasks.thinking import open_thinking
from germline.types import GermlineError
from tests.toy_runs import SETTINGS, settings


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_function_below_its_floor_for_a_wrong_number_is_refused_before_the_run(tmp_path):
    def near(completion, example):
        return 1 - abs(int(completion) - example["n"])

    rows = [{"prompt": f"{n}?", "answer": str(n), "n": n} for n in range(9)]
    config = {**SETTINGS, "task": {"max_new_tokens": 4}}
    with pytest.raises(
        GermlineError,
        match=r"the reward gave \S+ for the part 'near', worse than .*task\.reward_floor",
    ):
        germline.train(config, tmp_path / "run", reward=near, data=rows)
    assert not (tmp_path / "run").exists()


def test_wrong_answers_are_not_sent_to_scorers_before_the_run(tmp_path):
    rows = "".join(f'{{"prompt": "{n}?", "answer": "{n}"}}\n' for n in range(9))
    path = written(tmp_path, "digits.jsonl", rows)
    for scorers, tried in ("{}", [4, 4, 8]), ("{loops: repetition}", [4, 4]):
        config = settings(f"task={path}", f"task.scorers={scorers}")
        task = make_task(config.task)
        with (
            make_graders(config, task) as graders,
            mock.patch.object(graders, "submit", side_effect=graders.submit) as submit,
        ):
            check_custom_reward(config, task, graders)
        assert [len(call.args[0]) for call in submit.call_args_list] == tried


def test_answers_are_tried_where_the_template_of_the_model_opens_thinking(tmp_path):
    rows = "train = [{'prompt': f'{n}?', 'answer': str(n)} for n in range(9)]\n"
    reward = "def reward(completion, example):\n    return float(completion.split()[0] == '3')\n"
    path = written(tmp_path, "digits.py", rows + reward)
    config = settings(f"task={{kind: {path}, strip_thinking: true}}")
    task = make_task(config.task)
    task = open_thinking(task)
    with make_graders(config, task) as graders:
        check_custom_reward(config, task, graders)  # an empty text would fail
