"""What the start of a run finds wrong with a custom reward, and what it recommends."""

from germline.run.build_parts import make_graders
from germline.run.preflight import check_custom_reward
from germline.tasks import make_task
from germline.tasks.thinking import open_thinking
from tests.toy_runs import settings


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_answers_are_tried_where_the_template_of_the_model_opens_thinking(tmp_path):
    rows = "train = [{'prompt': f'{n}?', 'answer': str(n)} for n in range(9)]\n"
    reward = "def reward(completion, example):\n    return float(completion.split()[0] == '3')\n"
    path = written(tmp_path, "digits.py", rows + reward)
    config = settings(f"task={{kind: {path}, strip_thinking: true}}")
    task = make_task(config.task)
    task = open_thinking(task)
    with make_graders(config, task) as graders:
        check_custom_reward(config, task, graders)  # an empty text would fail
