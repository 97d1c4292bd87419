"""RandOpt: who is kept, how they vote, and that theta never moves."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import germline
from germline.config import Nes, ZScore, load_config
from germline.fleet import LocalFleet
from germline.methods.method import Evaluated, Method, make_method
from germline.methods.randopt import answer_function, majority_rollout, recorded_fitness
from germline.protocols import VotableTask
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.run.inference import open_evaluation
from germline.shaping import utilities
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import (
    Completion,
    Evaluation,
    Example,
    Grade,
    Population,
    Rollout,
    SeedPerturbation,
    Update,
)
from tests.toy_runs import finish, journal, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")


def randopt(*overrides):
    """Return the config of a toy run; its strategy says only which members play."""
    values = settings().model_dump() | {"strategy": {"population": 6, "sigma": 0.3}}
    given = ("space=full", "method={kind: randopt, ensemble_size: 3}", *overrides)
    return load_config(values, given)


def train(folder, *overrides):
    return finish(germline.train(randopt(*overrides), folder))


def test_voters_have_the_unit_of_their_run_on_a_task_that_is_named(tmp_path):
    values = settings().model_dump() | {"strategy": {"population": 6}}  # sigma=auto, in rms of W
    config = load_config(values, ["space=full", "method={kind: randopt, sigmas: [0.3]}"])
    folder = str(finish(germline.train(config, tmp_path / "run")))
    assert config.search.unit == "constant"
    assert germline.evaluate(folder, config.task)[0] == germline.evaluate(folder)[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run")


def updates_of(folder):
    entries = RunDirectory.open(folder).journal.read()
    return [one.update for one in entries if isinstance(one.update, Update)]


def member(direction, generation=0):
    return SeedPerturbation(0, generation, direction, 1, 0.3)


# --- who is kept


@pytest.mark.parametrize(
    ("fitness", "kept"),
    [
        (([1.0, 3.0, 2.0],), [(0, 1), (0, 2)]),
        (([1.0, 3.0], [2.0, 0.0]), [(0, 1), (1, 0)]),
        (([1.0, 1.0, 1.0], [1.0]), [(0, 0), (0, 1)]),  # of equal ones, those asked first
        (([math.nan, -5.0],), [(0, 1)]),
    ],
)
def test_the_fittest_are_kept_best_first(fitness, kept):
    nes = make_strategy(Nes(population=3, antithetic=False, sigma=0.3), run_seed=0, generations=2)
    config = load_config({"method": {"kind": "randopt", "ensemble_size": 2}})
    method = make_method(config, nes)
    for generation, values in enumerate(fitness):
        members = tuple(member(k, generation) for k in range(len(values)))
        evaluation = Evaluation(np.array(values)[:, None], (), 0, 0.0)
        population = Population(generation, members, antithetic=False)
        method.learn(population, Evaluated(rollouts=evaluation, members=evaluation))
    assert [(one.generation, one.direction) for one in method.voting_members()] == kept


def test_the_kept_members_of_a_run_are_those_of_the_largest_fitness(whole):
    directory = RunDirectory.open(whole)
    fitness = sorted((f for one in updates_of(whole) for f in recorded_fitness(one)), reverse=True)
    assert [row["fitness"] for row in directory.ensemble()] == fitness[:3]


def several(*sigmas):
    return load_config({"method": {"kind": "randopt", "sigmas": list(sigmas)}})


@pytest.mark.parametrize(
    ("antithetic", "expected"),
    [(False, [0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1, 0.2]), (True, [0.1, 0.1, 0.2, 0.2, 0.3, 0.3])],
)
def test_sigmas_go_in_turn_over_all_directions(antithetic, expected):
    nes = Nes(population=4, antithetic=antithetic, sigma=0.005)
    strategy = make_strategy(nes, run_seed=0, generations=9)
    search = make_method(several(0.1, 0.2, 0.3), strategy)
    asked = [one.sigma for g in (0, 1) for one in search.ask(g).seed_perturbations()]
    assert asked[: len(expected)] == expected


def test_a_generation_whose_members_are_equally_fit_has_no_signal():
    nes = make_strategy(Nes(population=2, sigma=0.005), run_seed=0, generations=1)
    method = make_method(randopt(), nes)
    for fitness, zero in (([1.0, 1.0], True), ([1.0, 2.0], False), ([1.0, None], True)):
        update = Update(0, 0, 0.1, 0.0, (), strategy_state={"told": fitness})
        assert method.is_zero_signal(update) is zero


def test_a_method_whose_result_is_a_vote_is_recalled():
    class Vote(Method):
        def voting_members(self):
            return [member(0)]

    nes = make_strategy(Nes(population=2, sigma=0.005), run_seed=0, generations=1)
    shape = partial(utilities, ZScore())
    assert Method(nes, shape).center_is_theta
    assert not Vote(nes, shape).center_is_theta


# --- how they vote

EXAMPLE = Example(0, "1 + 1?", "2", chat=False)


def written(*texts):
    """Return one rollout per text, of members 0, 1, ..."""
    return [
        Rollout(number, 0, Completion(text, (1,), "eos", 1), Grade(0.0, {}))
        for number, text in enumerate(texts)
    ]


def plain(text, example):
    return text or None


@pytest.mark.parametrize(
    ("texts", "elected"),
    [
        (("3", "2", "2"), 1),
        (("3", "2", "2", "3"), 0),  # a tie goes to the answer of the best member
        (("", "", "2"), 2),  # who gives no answer abstains
        (("", ""), 0),
    ],
)
def test_most_votes_win(texts, elected):
    assert majority_rollout(written(*texts), plain, EXAMPLE).member == elected


@pytest.mark.parametrize(
    ("task", "one", "other"),
    [
        ("arithmetic", "8", "The answer is 8."),
        ("multiplication", "1,200", "1200"),
        ("conciseness", "Paris", " paris. "),
        ("conciseness", "caf\u00e9", "cafe\u0301"),
        ("countdown", "</think><answer>1 + 2 + 3</answer>", "<answer>3*2*1</answer>"),
    ],
)
def test_two_ways_to_say_the_same_are_one_answer(task, one, other):
    answer = answer_function(make_task(load_config({"task": task}).task))
    example = replace(EXAMPLE, facts={"numbers": (1, 2, 3), "target": "6"})
    assert answer(one, example) == answer(other, example) is not None


@pytest.mark.parametrize(
    "text", ["no tag", "<answer>1 + 2</answer>", "<answer>1 + 2 + 4</answer>", "<answer>(</answer>"]
)
def test_in_countdown_an_expression_that_breaks_the_rules_abstains(text):
    task = make_task(load_config({"task": "countdown"}).task)
    example = replace(EXAMPLE, facts={"numbers": (1, 2, 3), "target": "6"})
    assert isinstance(task, VotableTask)
    assert task.answer_of(text, example) is None


def test_rows_of_a_file_are_compared_by_number_where_numbers_are_rewarded(tmp_path):
    rows = "".join(f'{{"prompt": "{n}?", "answer": "{n}"}}\n' for n in range(5))
    (tmp_path / "rows.jsonl").write_text(rows)
    for reward, same in (("numeric", True), ("exact", False)):
        section = {"kind": str(tmp_path / "rows.jsonl"), "reward": reward}
        answer = answer_function(make_task(load_config({"task": section}).task))
        assert (answer("so 5", EXAMPLE) == answer("it is 5", EXAMPLE)) is same


def test_the_held_out_score_of_a_run_is_that_of_the_vote(whole):
    directory = RunDirectory.open(whole)
    config = directory.config
    with build_run_parts(config) as parts:
        parts.method.recall([one.update for one in directory.journal.read()])
        assert isinstance(parts.fleet, LocalFleet)
        kept = parts.method.voting_members()
        examples = parts.task.examples("test")[: config.held_out.examples]
        sampling_noise = replace(parts.decoding, noise_stream="held out")
        engine = parts.fleet.engine
        # One by one, while the fleet plays those of one generation together.
        texts = [engine.generate([one], examples, sampling_noise)[0] for one in kept]
    answer = answer_function(parts.task)
    differences = []
    for place, example in enumerate(examples):
        votes = [answer(row[place].text, example) for row in texts]
        given = [vote for vote in votes if vote]
        most = max(given, key=lambda vote: (votes.count(vote), -votes.index(vote)), default=None)
        text = texts[votes.index(most) if most else 0][place].text
        differences.append(abs(len(text) - len(example.answer)))
    assert directory.held_out()[-1].score.mean == pytest.approx(np.mean(differences))


# --- the run


def test_theta_never_moves(whole):
    directory = RunDirectory.open(whole)
    assert {one.digest for one in directory.journal.read()} == {directory.base_digest}
    assert all(one.skipped for one in updates_of(whole))  # no moments, no decay, no -0 to 0


def test_a_measured_sigma_is_calibrated_once_and_found_again_on_resuming(tmp_path):
    config = randopt("strategy={kind: nes, population: 6}")
    measured = finish(germline.train(config, tmp_path / "whole"))
    sigmas = {one.sigma for one in updates_of(measured)}
    assert len(updates_of(measured)) == config.generations
    assert len(sigmas) == 1  # nothing is told of directions, so it has no reason to grow
    path = stopped_after(germline.train(config, tmp_path / "run"), 2)
    finish(germline.resume(path))
    assert journal(path) == journal(measured)
    assert RunDirectory.open(path).ensemble() == RunDirectory.open(measured).ensemble()
    assert {row["sigma"] for row in RunDirectory.open(path).ensemble()} == sigmas


def test_a_run_of_several_sigmas_needs_no_other_and_can_be_scored(tmp_path):
    config = randopt("strategy={kind: nes, population: 6}", "method.sigmas=[0.2, 0.4]")
    path = finish(germline.train(config, tmp_path / "run"))
    assert {one["sigma"] for one in RunDirectory.open(path).ensemble()} <= {0.2, 0.4}
    again, _ = germline.evaluate(str(path), limit=5)
    assert again.mean == RunDirectory.open(path).held_out()[-1].score.mean


def test_alone_a_run_speaks_as_its_best_member(whole):
    best = RunDirectory.open(whole).ensemble()[0]
    kept = SeedPerturbation(
        *(best[name] for name in ("run_seed", "generation", "direction", "sign", "sigma"))
    )
    with build_run_parts(randopt()) as parts:
        example = Example(0, "What is a cow?", "", chat=True)
        sampling_noise = replace(parts.decoding, max_new_tokens=40, temperature=0.0, stop=())
        assert isinstance(parts.fleet, LocalFleet)
        wanted = parts.fleet.engine.generate([kept], [example], sampling_noise)[0][0].text
    found = germline.generate(str(whole), [example.prompt], max_new_tokens=40)[0].text
    assert found == wanted


def test_of_several_sigmas_the_record_has_the_geometric_mean():
    config = several(0.1, 0.4)
    few = Nes(population=4, antithetic=False, sigma=0.005)
    nes = make_strategy(few, run_seed=0, generations=1, dimension=9)
    search = make_method(config, nes)
    found = Evaluation(np.arange(4.0)[:, None], (), 0, 0.0)
    update = search.learn(search.ask(0), Evaluated(rollouts=found, members=found)).update
    assert isinstance(update, Update)
    assert update.sigma == pytest.approx(0.2)


def test_the_divergence_of_a_vote_is_that_of_its_members(whole):
    far, behavior = open_evaluation(str(whole), limit=4).measure_kl()
    assert far.texts == behavior["texts"] == 3 * 4
    assert far.per_token > 0.01  # theta itself has gone nowhere
