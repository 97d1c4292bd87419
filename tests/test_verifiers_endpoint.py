"""Environments of verifiers that ask an endpoint for replies, with engines in this process.

`make hosts` runs these tests in an environment that has verifiers.
"""

import math
from dataclasses import replace

import pytest

from benchmarks.instant_engine import InstantEngine
from germline.config import load_config
from germline.episodes import play_episodes
from germline.record import RunDirectory
from germline.run import train
from germline.run.build_parts import make_decoding, make_engine, make_graders
from germline.tasks import make_task
from germline.types import EngineLost, GermlineError, SeedPerturbation
from tests import verifiers_tasksets as written

pytest.importorskip(
    "verifiers.v1", reason="verifiers is not installed here: `make hosts` runs these tests"
)

MEMBERS = [SeedPerturbation(0, 0, number, 1, 0.1) for number in range(3)]
TALK = written.COUNTED.replace("TURNS", "3").replace("PAUSE_S", "0")


@pytest.fixture(scope="module")
def nano():
    return make_engine(load_config({"model": "nano", "task": "wordle", "space": "low_rank"}))


@pytest.fixture
def player(tmp_path, request):
    """Return a function that plays episodes of a taskset, in a module of this test alone."""

    def play(text, engine, *, client="http", members=MEMBERS, examples=3, timeout_s=30.0, **more):
        name = f"env_{abs(hash((request.node.name, text)))}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        task = {"kind": "verifiers", "env": str(file), "max_turns": 6, "max_new_tokens": 12}
        task |= {"client": client} | more
        limits = {"timeout_s": timeout_s}
        config = load_config({"model": "nano", "task": task, "graders": limits})
        made = make_task(config.task)
        with make_graders(config, made) as graders:
            rows = made.examples("train")[:examples]
            return play_episodes(engine, graders, members, rows, make_decoding(config, made), 4)

    return play


def texts(rollout):
    return [turn.content for turn in rollout.turns if turn.role == "assistant"]


def test_greedy_episodes_have_the_tokens_and_records_of_the_direct_path(player, nano):
    direct = player(TALK, nano, client="direct")
    assert player(TALK, nano) == direct
    assert len(direct[0][0].turns) == 7
    assert len({rollout.turns for row in direct for rollout in row}) > 3


def test_a_greedy_run_has_the_digests_of_the_direct_path(tmp_path):
    file = tmp_path / "env_of_two_runs.py"
    file.write_text(TALK)

    def digests(client):
        task = {"kind": "verifiers", "env": str(file), "max_new_tokens": 12, "client": client}
        config = {
            "model": "nano",
            "task": task,
            "space": "low_rank",
            "strategy": {"population": 4, "sigma": 0.1},
            "batch_size": 2,
            "generations": 2,
            "graders": {"timeout_s": 60.0},
            "held_out": {"every": 2, "examples": 2},
        }
        for _ in train(load_config(config), tmp_path / client):
            pass
        return [entry.digest for entry in RunDirectory.open(tmp_path / client).journal.read()]

    direct = digests("direct")
    assert len(set(direct)) == 2
    assert digests("http") == direct


def test_sampled_episodes_do_not_depend_on_the_order_in_which_requests_arrive(player, nano):
    slow = TALK.replace("asyncio.sleep(0 *", "asyncio.sleep(0.05 *")
    assert slow != TALK
    first = player(TALK, nano, temperature=1.0)
    assert player(slow, nano, temperature=1.0) == first
    assert len({tuple(texts(row[0])) for row in first}) == 3
    assert len(set(texts(first[0][0]))) > 1  # turns have noise of their own


def test_members_with_the_same_weights_have_the_same_samples(player, nano):
    one, two = player(TALK, nano, members=[None, None], temperature=1.0)
    assert one == [replace(rollout, member=0) for rollout in two]


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


def test_several_agents_ask_over_http_and_the_trained_one_earns_the_reward(player, caplog):
    engine = InstantEngine(lambda first, _: "four" if first.startswith("Word") else "a longer text")
    text = written.DEBATE.replace("TURNS", "1").replace("PAUSE_S", "0")
    (row,) = player(text, engine, client="auto", members=[None])
    assert "it has the agents player, critic, so it asks for replies over HTTP" in caplog.text
    assert texts(row[0]) == ["four", "a longer text"]
    assert [rollout.grade.reward for rollout in row] == [4.0, 4.0, 4.0]


def test_a_harness_with_a_client_of_its_own_asks_over_http(player, caplog):
    engine = InstantEngine(lambda first, _: f"seen {first}")
    text = written.OWN_CLIENT.replace("TURNS", "1").replace("PAUSE_S", "0")
    (row,) = player(text, engine, client="auto", members=[None], examples=1)
    assert "it has the harness" in caplog.text
    assert row[0].grade.reward == len(texts(row[0])[0])
    assert texts(row[0])[0].startswith("seen Word")


def test_tools_are_called_in_the_text_of_the_direct_path(player):
    calls = [
        'Let me see.\n<tool_call>{"name": "shop_price", "arguments": {"item": "tea"}}</tool_call>',
        '<tool_call>{"name": "prize", "arguments": {}}</tool_call>',
        "<tool_call>no json</tool_call>",
        "It is 3.",
    ]
    engine = InstantEngine(lambda _, turn: calls[turn])
    played = [
        player(written.TOOLS, engine, client=client, members=[None], examples=2)
        for client in ("direct", "http")
    ]
    assert played[0] == played[1]
    assert played[1][0][0].grade.reward == 1.0
    assert played[1][0][0].turns[1].content == "<tool_response>\n3\n</tool_response>"


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


def test_a_service_that_is_away_is_missing_and_not_0(player):
    engine = InstantEngine(lambda first, turn: "away")
    (row,) = player(TALK, engine, members=[None], examples=1)
    assert math.isnan(row[0].grade.reward)
    assert "no service" in row[0].grade.failure


def test_an_episode_that_nothing_rewards_is_an_error_and_not_0(player):
    with pytest.raises(GermlineError, match="has no reward for an episode"):
        player(TALK.replace("@vf.reward", ""), InstantEngine(lambda *_: "fine"), members=[None])


def test_a_reward_that_is_not_finite_is_named_and_earns_the_floor(player):
    text = TALK.replace("float(len(trace.last_reply))", "float('nan')")
    (row,) = player(text, InstantEngine(lambda *_: "fine"), members=[None], floor=-1.0)
    assert row[0].grade.reward == -1.0
    assert row[0].grade.failure.startswith("the reward 'length' is nan: it must")


def test_a_failure_before_the_first_reply_is_missing(player):
    (row,) = player(written.SETUP_RAISES, InstantEngine(lambda *_: ""), members=[None])
    assert all(math.isnan(rollout.grade.reward) for rollout in row)
    assert "no disk" in row[0].grade.failure


@pytest.mark.parametrize("error", [EngineLost("the engine is gone"), GermlineError("too long")])
def test_a_failure_of_the_engine_is_that_of_the_evaluation(player, error):
    def fail(*_):
        raise error

    with pytest.raises(type(error), match=str(error)):
        player(TALK, InstantEngine(fail), members=[None])


@pytest.mark.parametrize(("turns", "ended"), [("2", "done"), ("10**9", "max_turns")])
def test_the_limit_of_turns_holds(player, turns, ended):
    text = TALK.replace("range(3)", f"range({turns})")
    engine = InstantEngine(lambda _, turn: "x" * turn)
    direct, http = (
        player(text, engine, client=client, members=[None]) for client in ("direct", "http")
    )
    assert http == direct
    assert http[0][0].ended == ended


def test_a_full_context_ends_the_episode_which_is_scored_as_it_is(player, nano):
    text = TALK.replace('f"Go on with {number}."', '"Go on and on. " * 30').replace(
        "range(3)", "range(9)"
    )
    direct, http = (
        player(text, nano, client=client, members=[None], examples=2)
        for client in ("direct", "http")
    )
    assert http[0][0].ended == "context"
    assert [one.grade for one in http[0]] == [one.grade for one in direct[0]]
    assert [texts(one) for one in http[0]] == [texts(one) for one in direct[0]]


@pytest.mark.parametrize("setting", [{"system_prompt": "x"}, {"chat": False}])
def test_settings_of_prompts_are_refused(player, setting):
    (name,) = setting
    with pytest.raises(GermlineError, match=rf"task\.{name} has no effect with task\.client=http"):
        player(TALK, InstantEngine(lambda *_: ""), **setting)


def test_several_agents_are_refused_on_the_direct_path(player):
    with pytest.raises(GermlineError, match=r"use task\.client=http"):
        player(written.DEBATE, InstantEngine(lambda *_: ""), client="direct")
