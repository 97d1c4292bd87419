"""Environments of verifiers v1, played without a model through the pool of graders, as a run does.

`make hosts` runs these tests in an environment that has verifiers.
"""

import json
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from germline.config import Verifiers, load_config
from germline.episode_types import Transcript
from germline.graders.fuzz_texts import HOSTILE
from germline.graders.in_process_pool import InProcessPool
from germline.graders.pool import GraderPool
from germline.tasks import make_task
from germline.types import GermlineError
from tests import verifiers_tasksets as written
from tests.hang_limit import HANG_S

vf = pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here: `make hosts` runs these tests"
)


@pytest.fixture
def task_of(tmp_path, request):
    """Make the task of a taskset, in a module whose name no other test has."""

    def make(text, **settings):
        name = "env_" + request.node.name.replace("[", "_").replace("]", "").replace("-", "_")
        file = tmp_path / f"{name.lower()}.py"
        file.write_text(text)
        return make_task(Verifiers(env=str(file), **settings))

    return make


def pool_of(task, **more):
    return InProcessPool(
        task.episode_grader, task.rubric, task.floor, more.get("timeout_s", 20.0), task.max_turns
    )


def play(task, replies, place=0, *, is_final=False, **more):
    """Return the grade after each reply."""
    example = task.examples("train")[place]
    with pool_of(task, **more) as pool:
        return [
            pool.submit(
                [Transcript(tuple(replies[:n]), 0, is_final and n == len(replies))], [example]
            ).result()[0]
            for n in range(len(replies) + 1)
        ]


def test_a_single_turn_task_with_a_system_prompt(task_of):
    task = task_of(written.SUMS, args={"largest": 5})
    assert len(task.examples("train")) + len(task.examples("test")) == 5
    assert task.rubric == {"reward": 1.0, "right": 0.0, "short": 0.0, "turns": 0.0}
    example = task.examples("train")[0]
    assert example.context == (("system", "Add."),)
    answer = str(int(example.prompt.split()[2]) + 1)
    start, right = play(task, [answer])
    assert start.observation == ""
    assert right.reward == 1.5
    assert right.parts == {"reward": 1.5, "right": 1.0, "short": 1.0, "turns": 1.0}
    assert play(task, ["a wrong answer"])[1].reward == 0.0


def test_several_turns_and_the_turn_limit(task_of):
    text = written.DIALOG.replace("TURNS", "2")
    task = task_of(text, tasks=4, metrics=["count"])
    grades = play(task, ["a", "b", "c"])
    assert [one.observation for one in grades] == ["", "1: a", "2: b", None]
    assert grades[-1].parts == {"reward": 2.0, "count": 2.0}
    cut = play(task, ["a", "b"], is_final=True)[-1]
    assert cut.reward == 2.0


def test_an_episode_that_never_ends_is_cut_and_scored(task_of):
    task = task_of(written.DIALOG.replace("TURNS", "10**9"), tasks=4)
    grades = play(task, ["a", "b", "c"], is_final=True)
    assert [one.observation for one in grades] == ["", "1: a", "2: b", None]
    assert grades[-1].reward == 3.0


def test_an_episode_is_found_again_by_its_replies_alone(task_of):
    task = task_of(written.DIALOG.replace("TURNS", "5"), tasks=4)
    example = task.examples("train")[0]
    with pool_of(task) as pool:
        (grade,) = pool.submit([Transcript(("a", "b", "c"), 7)], [example]).result()
    assert grade.observation == "3: c"


def test_what_a_reply_makes_fail_earns_the_floor(task_of):
    task = task_of(written.DIALOG.replace("TURNS", "5"), tasks=4, floor=-1.0)
    grade = play(task, ["raise"])[-1]
    assert grade.reward == -1.0
    assert "what a reply" in grade.failure
    hung = play(task, ["a", "hang"], timeout_s=2.0)[-1]
    assert (hung.reward, hung.failure) == (-1.0, "timeout after 2.0 s")


def test_a_reward_that_raises_earns_the_floor(task_of):
    task = task_of(written.RAISES, floor=-1.0)
    grade = play(task, ["xxx"])[-1]
    assert grade.reward == -1.0
    assert "ZeroDivisionError" in grade.failure


def without_rewards(text):
    """Return the taskset without the decorators of rewards."""
    return "\n".join(line for line in text.splitlines() if "@vf.reward" not in line)


def test_an_episode_that_nothing_rewards_is_an_error_and_not_0(task_of):
    with pytest.raises(GermlineError, match=r"has no reward for an episode: .* with @vf\.reward"):
        play(task_of(without_rewards(written.SUMS)), ["1"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("float(trace.last_reply.strip() == self.data.answer)", "float('nan')", "reward 'right'"),
        ("float(len(trace.last_reply) < 5)", "{'brief': float('inf')}", "reward 'brief'"),
        ("trace.num_turns", "float('nan')", "metric 'turns'"),
        (
            "float(trace.last_reply.strip() == self.data.answer)",
            "{'a': 1e308, 'b': 1e308}",
            "sum of the rewards short, a, b",
        ),
    ],
    ids=["declared", "by-name", "metric", "sum"],
)
def test_what_is_not_finite_is_named_and_earns_the_floor(task_of, old, new, said):
    grade = play(task_of(written.SUMS.replace(old, new), floor=-1.0), ["1"])[-1]
    assert grade.reward == -1.0
    assert grade.failure.startswith(f"the {said} is ")
    assert grade.failure.endswith(": it must be a finite number whatever the model replies")


def test_a_service_that_is_away_is_missing_and_not_0(task_of):
    task = task_of(written.DIALOG.replace("TURNS", "5"), tasks=4)
    grade = play(task, ["away"])[-1]
    assert math.isnan(grade.reward)
    assert "no service" in grade.failure


def test_a_failure_before_the_first_reply_is_missing(task_of):
    grade = play(task_of(written.SETUP_RAISES), [])[0]
    assert math.isnan(grade.reward)
    assert grade.observation is None
    assert "no disk" in grade.failure


def test_tools_are_described_called_and_share_the_state_of_the_task(task_of):
    task = task_of(written.TOOLS)
    ((role, system),) = task.examples("train")[0].context
    assert role == "system"
    assert '"name": "shop_price", "description": "Tell the price of an item."' in system
    replies = [
        'Let me see.\n<tool_call>{"name": "shop_price", "arguments": {"item": "tea"}}</tool_call>',
        '<tool_call>{"name": "shop_price", "arguments": {"item": "car"}}</tool_call>',
        '<tool_call>{"name": "shop_price", "arguments": {"thing": "tea"}}</tool_call>',
        '<tool_call>{"name": "prize", "arguments": {}}</tool_call>',
        "<tool_call>no json</tool_call>",
        "It is 3.",
    ]
    grades = play(task, replies)
    seen = [one.observation for one in grades]
    assert seen[:2] == ["", "<tool_response>\n3\n</tool_response>"]
    assert "not for sale" in seen[2]
    assert "item" in seen[3]
    assert "there is no tool 'prize'" in seen[4]
    assert "must be a JSON object" in seen[5]
    assert seen[6] is None
    assert grades[-1].reward == 2.0


@pytest.mark.parametrize(
    ("item", "needed"),
    [
        ("NaN", "'item' must be a finite number, found nan"),
        ('"\\ud800"', "'item' must be valid Unic"),
    ],
    ids=["nan", "surrogate"],
)
def test_no_tool_gets_a_value_that_json_does_not_have(task_of, item, needed):
    task = task_of(written.TOOLS.replace("item: str", "item: float | str"))
    call = f'<tool_call>{{"name": "shop_price", "arguments": {{"item": {item}}}}}</tool_call>'
    answer = play(task, [call])[-1]
    assert f"Error: wrong arguments of shop_price: {needed}" in answer.observation


def test_hostile_replies_are_graded(task_of):
    task = task_of(written.SUMS)
    for text in HOSTILE:
        assert play(task, [text], timeout_s=60.0)[-1].failure is None, repr(text[:80])


def test_the_pool_plays_in_a_process_of_its_own(task_of):
    task = task_of(written.SUMS)
    assert pickle.loads(pickle.dumps(task.episode_grader)) == task.episode_grader
    examples = task.examples("train")[:2]
    with GraderPool(
        task.episode_grader, task.rubric, task.floor, timeout_s=60.0, max_turns=task.max_turns
    ) as pool:
        starts = pool.submit([Transcript((), 0)] * 2, examples).result()
        assert [one.observation for one in starts] == ["", ""]
        ends = pool.submit([Transcript(("x",), 0)] * 2, examples).result()
    assert [one.reward for one in ends] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "settings", "problem"),
    [
        (written.V0, {}, "is an environment of verifiers v0"),
        (written.TWO_AGENTS, {"client": "direct"}, "has the agents solver, judge"),
        (written.DIALOG.replace("TURNS", "5"), {}, "has no end: set task.tasks"),
        (written.SUMS, {"args": {"smallest": 3}}, "smallest"),
        (written.SUMS, {"args": {"largest": 0}}, "has no tasks"),
    ],
    ids=["v0", "agents", "endless", "setting", "empty"],
)
def test_what_cannot_be_played_is_refused(task_of, text, settings, problem):
    with pytest.raises(GermlineError, match=problem):
        task_of(text, **settings)


def test_a_second_run_of_the_agent_is_refused_with_the_setting_that_plays_it(task_of):
    task = task_of(written.ATTEMPTS.replace("TURNS", "1").replace("PAUSE_S", "0"))
    with pytest.raises(GermlineError, match=r"more than once in an episode: use task\.client=http"):
        play(task, ["x"])


def write_words(folder, words):
    """Write word lists and a table of their parts of speech in the formats of NLTK's data."""
    lists, tagger = folder / "corpora/words", folder / "taggers/averaged_perceptron_tagger_eng"
    lists.mkdir(parents=True)
    tagger.mkdir(parents=True)
    for name in ("en", "en-basic", "README"):
        (lists / name).write_text("\n".join(words) + "\n")
    parts = {"weights": {}, "tagdict": dict.fromkeys(words, "NN"), "classes": ["NN"]}
    for name, part in parts.items():
        (tagger / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(part))


def test_wordle_of_textarena_is_played_with_word_data_of_the_user(monkeypatch, tmp_path):
    nltk = pytest.importorskip("nltk")
    write_words(tmp_path, ["crane"])
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    shipped = Path(__file__).parents[1] / "configs/verifiers/textarena-wordle.yaml"
    task = make_task(load_config(shipped, ("task.tasks=5",)).task)
    _, guess, win = play(task, ["I guess [bread].", "Now [crane]!"])
    assert "B R E A D\nX G Y Y X" in guess.observation
    assert win.reward == 1.0
    from textarena.envs.utils import word_lists

    assert word_lists.EnglishDictionary.cache_info().misses == 1


def test_missing_word_data_of_textarena_is_named_with_what_to_type(tmp_path):
    pytest.importorskip("nltk")
    lines = (
        f"import sys; sys.path += {sys.path!r}",
        "from germline.config import Verifiers",
        "from germline.tasks import make_task",
        "make_task(Verifiers(env='textarena', args={'game': 'Wordle-v0'}, tasks=5))",
    )
    # In a process of its own: NLTK and TextArena's games keep the words that they have found.
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**os.environ, "HOME": str(tmp_path), "NLTK_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    error = done.stderr.splitlines()[-1]
    assert "python -m nltk.downloader -d FOLDER words averaged_perceptron_tagger_eng" in error
    assert "NLTK_DATA" in error
