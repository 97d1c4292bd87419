"""Environments of verifiers v1, whose episodes ask an endpoint of this process for replies.

`make hosts` runs these tests in an environment that has verifiers.
"""

import json
import math
import pickle

import pytest

from germline.config import load_config
from germline.episodes import play_episodes
from germline.graders.fuzz_texts import HOSTILE
from germline.protocols import EpisodeTask
from germline.record import RunDirectory
from germline.run import train
from germline.run.build_parts import make_decoding, make_engine, make_graders
from germline.tasks import make_task
from germline.types import GermlineError, SeedPerturbation
from tests import verifiers_tasksets as written
from tests.instant_engine import InstantEngine

pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here: `make hosts` runs these tests"
)

MEMBERS = [SeedPerturbation(0, 0, number, 1, 0.1) for number in range(3)]
TALK = written.COUNTED.replace("TURNS", "3").replace("PAUSE_S", "0")


@pytest.fixture(scope="module")
def nano():
    return make_engine(load_config({"model": "nano", "task": "wordle", "space": "low_rank"}))


@pytest.fixture
def section_of(tmp_path, request):
    """Return the task section of a taskset, in a module of this test alone."""

    def section(text, **more):
        name = f"env_{abs(hash((request.node.name, text)))}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        return {"kind": "verifiers", "env": str(file), "max_turns": 6, "max_new_tokens": 12} | more

    return section


@pytest.fixture
def player(section_of):

    def play(text, engine, *, members=MEMBERS, examples=3, timeout_s=30.0, **more):
        return play_task(section_of(text, **more), engine, members, examples, timeout_s)

    return play


def play_task(section, engine, members=(None,), examples=1, timeout_s=30.0):
    limits = {"timeout_s": timeout_s}
    config = load_config({"model": "nano", "task": section, "graders": limits})
    task = make_task(config.task)
    with make_graders(config, task) as graders:
        rows = task.examples("train")[:examples]
        return play_episodes(engine, graders, members, rows, make_decoding(config, task), 4)


def saying(*replies):
    """Return an engine that writes these replies, turn by turn."""
    return InstantEngine(lambda _, turn: replies[turn])


def texts(rollout, role="assistant"):
    return [turn.content for turn in rollout.turns if turn.role == role]


def test_a_single_turn_task_with_a_system_prompt(section_of):
    section = section_of(written.SUMS, args={"largest": 5})
    task = make_task(load_config({"task": section}).task)
    assert len(task.examples("train")) + len(task.examples("test")) == 5
    assert isinstance(task, EpisodeTask)
    assert task.rubric == {"reward": 1.0, "right": 0.0, "short": 0.0, "turns": 0.0}
    example = task.examples("train")[0]
    assert example.context == (("system", "Add."),)
    assert pickle.loads(pickle.dumps(task.episode_grader)) == task.episode_grader
    answer = str(int(example.prompt.split()[2]) + 1)
    right, wrong = (play_task(section, saying(text))[0][0] for text in (answer, "a wrong answer"))
    assert right.grade.reward == 1.5
    assert right.grade.parts == {"reward": 1.5, "right": 1.0, "short": 1.0, "turns": 1.0}
    assert wrong.grade.reward == 0.0


def test_metrics_that_are_not_declared_are_recorded(player):
    text = written.DIALOG.replace("TURNS", "2")
    ((rollout,),) = player(
        text, saying("a", "b", "c"), members=[None], examples=1, tasks=4, metrics=["count"]
    )
    assert texts(rollout, "user") == ["1: a", "2: b"]
    assert rollout.grade.parts == {"reward": 2.0, "count": 2.0}


def test_a_greedy_run_repeats_its_digests(tmp_path, section_of):
    def digests(name):
        config = {
            "model": "nano",
            "task": section_of(TALK),
            "space": "low_rank",
            "strategy": {"population": 4, "sigma": 0.1},
            "batch_size": 2,
            "generations": 2,
            "graders": {"timeout_s": 60.0},
            "held_out": {"every": 2, "examples": 2},
        }
        for _ in train(load_config(config), tmp_path / name):
            pass
        return [entry.digest for entry in RunDirectory.open(tmp_path / name).journal.read()]

    first = digests("first")
    assert len(set(first)) == 2
    assert digests("second") == first


def test_sampled_episodes_do_not_depend_on_the_order_in_which_requests_arrive(player, nano):
    slow = TALK.replace("asyncio.sleep(0 *", "asyncio.sleep(0.05 *")
    assert slow != TALK
    first = player(TALK, nano, temperature=1.0)
    assert player(slow, nano, temperature=1.0) == first
    assert len({tuple(texts(row[0])) for row in first}) == 3
    assert len(set(texts(first[0][0]))) > 1  # turns have noise of their own


def test_each_run_of_an_agent_has_samples_of_its_own(player, nano):
    rows = player(
        written.ATTEMPTS.replace("TURNS", "1").replace("PAUSE_S", "0"),
        nano,
        members=[None],
        examples=2,
        temperature=1.5,
    )
    assert [len(texts(rollout)) for rollout in rows[0]] == [3, 3]
    assert all(len(set(texts(rollout))) > 1 for rollout in rows[0])
    assert rows[0][0].grade.reward == pytest.approx(
        sum(len(text.strip()) for text in texts(rows[0][0])) / 3
    )


def test_several_agents_ask_and_the_trained_one_earns_the_reward(player):
    engine = InstantEngine(lambda first, _: "four" if first.startswith("Word") else "a longer text")
    text = written.DEBATE.replace("TURNS", "1").replace("PAUSE_S", "0")
    (row,) = player(text, engine, members=[None])
    assert texts(row[0]) == ["four", "a longer text"]
    assert [rollout.grade.reward for rollout in row] == [4.0, 4.0, 4.0]


def test_a_harness_with_a_client_of_its_own(player):
    engine = InstantEngine(lambda first, _: f"seen {first}")
    text = written.OWN_CLIENT.replace("TURNS", "1").replace("PAUSE_S", "0")
    (row,) = player(text, engine, members=[None], examples=1)
    assert row[0].grade.reward == len(texts(row[0])[0])
    assert texts(row[0])[0].startswith("seen Word")


def test_tools_are_described_called_and_share_the_state_of_the_task(section_of):
    section = section_of(written.TOOLS, max_turns=7)
    ((role, system),) = make_task(load_config({"task": section}).task).examples("train")[0].context
    assert role == "system"
    assert '"name": "shop_price", "description": "Tell the price of an item."' in system
    replies = [
        'Let me see.\n<tool_call>{"name": "shop_price", "arguments": {"item": "tea"}}</tool_call>',
        '<tool_call>{"name": "shop_price", "arguments": {"item": "car"}}</tool_call>',
        '<tool_call>{"name": "shop_price", "parameters": {"thing": "tea"}}</tool_call>',
        '<tool_call>{"name": "prize", "arguments": null}</tool_call>',
        "<tool_call>no json</tool_call>",
        '<tool_call>{"name": "shop_price", "arguments": {"item": "\\ud800"}}</tool_call>',
        "It is 3.",
    ]
    ((rollout,),) = play_task(section, saying(*replies))
    seen = texts(rollout, "user")
    assert seen[0] == "<tool_response>\n3\n</tool_response>"
    assert "not for sale" in seen[1]
    assert "item" in seen[2]
    assert "there is no tool 'prize'" in seen[3]
    assert "must be a JSON object" in seen[4]
    assert "'item': Invalid JSON" in seen[5]
    assert rollout.grade.reward == 2.0


def test_hostile_replies_are_graded(player):
    # No tokenizer writes half of a surrogate pair.
    texts_left = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    engine = InstantEngine(lambda _first, _turn: texts_left.pop())
    (row,) = player(
        written.SUMS,
        engine,
        members=[None],
        examples=len(HOSTILE),
        args={"largest": 2 * len(HOSTILE)},
        timeout_s=60.0,
    )
    assert [rollout.grade.failure for rollout in row] == [None] * len(row)


@pytest.mark.parametrize("fault", ["raise", "spin", "sleep", "die"])
def test_what_a_reply_makes_fail_earns_the_floor_in_its_episode_alone(player, fault):
    firsts = []

    def text_of(first, turn):
        firsts.append(first)
        return fault if first == firsts[0] and turn == 1 else "fine"

    (row,) = player(TALK, InstantEngine(text_of), members=[None], floor=-1.0, timeout_s=2.0)
    by_fault = {rollout.grade.failure is not None: rollout for rollout in row}
    assert by_fault[True].grade.reward == -1.0
    assert by_fault[True].ended == "failure"
    assert texts(by_fault[True])[:2] == ["fine", fault]
    assert sum(rollout.grade.reward == 4.0 for rollout in row) == len(row) - 1


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
        ("trace.last_reply.strip() == self.data.answer", "1 / 0", "ZeroDivisionError"),
    ],
    ids=["declared", "by-name", "metric", "sum", "raises"],
)
def test_what_is_not_finite_is_named_and_earns_the_floor(player, old, new, said):
    text = written.SUMS.replace(old, new)
    ((rollout,),) = player(text, saying("1"), members=[None], examples=1, floor=-1.0)
    assert rollout.grade.reward == -1.0
    assert said in rollout.grade.failure


@pytest.mark.parametrize(
    ("text", "reply", "said"), [(TALK, "away", "no service"), (written.SETUP_RAISES, "", "no disk")]
)
def test_a_failure_before_the_first_reply_is_missing(player, text, reply, said):
    (row,) = player(text, InstantEngine(lambda *_: reply), members=[None])
    assert all(math.isnan(rollout.grade.reward) for rollout in row)
    assert said in row[0].grade.failure


def test_an_episode_that_nothing_rewards_is_an_error_and_not_0(player):
    with pytest.raises(GermlineError, match="has no reward for an episode"):
        player(TALK.replace("@vf.reward", ""), InstantEngine(lambda *_: "fine"), members=[None])


@pytest.mark.parametrize(("turns", "ended"), [("2", "done"), ("10**9", "max_turns")])
def test_the_limit_of_turns_holds(player, turns, ended):
    text = TALK.replace("range(3)", f"range({turns})")
    (row,) = player(text, InstantEngine(lambda _, turn: "x" * turn), members=[None])
    assert row[0].ended == ended
    assert row[0].grade.failure is None


def test_a_full_context_ends_the_episode_which_is_scored_as_it_is(player, nano):
    text = TALK.replace('f"Go on with {number}."', '"Go on and on. " * 30')
    (row,) = player(text.replace("range(3)", "range(9)"), nano, members=[None], examples=2)
    assert row[0].ended == "context"
    assert row[0].grade.reward == len(texts(row[0])[-1].strip())


@pytest.mark.parametrize(
    ("text", "settings", "problem"),
    [
        (written.V0, {}, "no module with a vf.Taskset of verifiers v1"),
        (f"import no_such_package\n{TALK}", {}, "No module named 'no_such_package'"),
        (written.DIALOG.replace("TURNS", "5"), {}, "has no end: set task.tasks"),
        (written.SUMS, {"args": {"smallest": 3}}, "smallest"),
        (written.SUMS, {"args": {"largest": 0}}, "has no tasks"),
    ],
    ids=["v0", "package", "endless", "setting", "empty"],
)
def test_what_cannot_be_played_is_refused(section_of, text, settings, problem):
    with pytest.raises(GermlineError, match=problem):
        make_task(load_config({"task": section_of(text, **settings)}).task)


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
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))  # for the grader process
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    section = {"kind": "verifiers", "env": "textarena", "args": {"game": "Wordle-v0"}, "tasks": 5}
    ((rollout,),) = play_task(section, saying("I guess [bread].", "Now [crane]!"))
    assert "B R E A D\nX G Y Y X" in texts(rollout, "user")[0]
    assert rollout.grade.reward == 1.0
    from textarena.envs.utils import word_lists

    assert word_lists.EnglishDictionary.cache_info().misses == 1
