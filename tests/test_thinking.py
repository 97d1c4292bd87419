"""`task.strip_thinking` with every kind of reward: nothing else about the reward changes."""

import germline
from germline.graders.pool import InProcessPool
from tests.test_from_python import ON_ROWS, ROWS, mean_at_end

STRIPPED = {**ON_ROWS, "task": {**ON_ROWS["task"], "strip_thinking": True}}


def test_a_function_that_cannot_be_imported_grades_the_text_without_its_thinking(tmp_path):
    seen = []

    def reward(completion, example):
        seen.append(completion)
        return 0.5

    training = germline.train(STRIPPED, tmp_path / "run", reward=reward, data=ROWS)
    pool = training._parts.graders
    assert isinstance(pool, InProcessPool)
    example = training._parts.task.examples("train")[0]
    pool.submit(["<think>hm</think>yes"], [example])
    assert seen[-1] == "yes"
    assert mean_at_end(training.run()) == 0.5
