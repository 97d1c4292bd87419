"""The weights that a server offers by name: the start, the center, generations, members."""

import shutil

import pytest

import germline
from germline.endpoint.http_app import RequestError
from germline.endpoint.rows import SelectedWeights
from germline.methods.method import Method
from germline.record import RunDirectory
from germline.run.weights import load_engine
from germline.services.serve import STATES_KEPT, ServedWeights
from tests.toy_runs import ADAM_FULL, finish, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

VOTES = ("method={kind: randopt, ensemble_size: 2}", "strategy.learning_rate=auto")
STRATEGIES = {
    "nes": (),
    "calibrated sigma": ("strategy.sigma=auto",),
    "sigma of tensors": ("strategy.sigma={kind: natural, start: 0.3}",),
    "cma": (
        "strategy={kind: cma, sigma: 0.3, population: 6}",
        "space={kind: subspace, dimension: 8}",
    ),
    "votes at several sigmas": (*VOTES, "method.sigmas=[0.1, 0.3]", "strategy.sigma=auto"),
    "prompt options": ("prompt_search={few_shot: [0, 1]}",),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("served") / "run", *ADAM_FULL)


@pytest.fixture
def weights(trained):
    opened = ServedWeights.open(str(trained))
    yield opened
    opened.close()


def digest(weights, name):
    """Let the engine have the weights of a name; return their digest."""
    weights.load(weights.select(name))
    return weights.engine.weights.digest()


def digests(folder):
    directory = RunDirectory.open(folder)
    return [directory.base_digest, *(entry.digest for entry in directory.journal.read())]


def refusal(weights, name):
    with pytest.raises(RequestError) as caught:
        weights.select(name)
    return caught.value


def test_every_name_has_the_weights_of_its_generation_in_any_order(weights, trained):
    base, *later = digests(trained)
    expected = {"base": base, "center": later[-1]}
    expected |= {f"gen-{number}": one for number, one in enumerate(later)}
    assert weights.names() == list(expected)
    assert len(later) > STATES_KEPT + 1  # so some are rebuilt again
    for name in [*expected, *reversed(expected), "gen-1", "base", "gen-1"]:
        assert digest(weights, name) == expected[name]
        assert weights.select(name).fingerprint == expected[name]
        assert len(weights._states) <= STATES_KEPT
    for generation in (2, 0):  # a member is loaded as the center that it perturbs
        assert digest(weights, f"gen-{generation}/member-5") == [base, *later][generation]


def test_the_center_may_be_another_generation(trained):
    weights = ServedWeights.open(str(trained), generation=1)
    assert weights.engine.weights.digest() == digests(trained)[2]
    assert weights.select("center") == weights.select("gen-1")
    assert digest(weights, "gen-3") == digests(trained)[-1]


@pytest.mark.parametrize("name", STRATEGIES)
def test_members_are_those_that_the_generation_evaluated(name, tmp_path, monkeypatch):
    populations = {}
    evaluate = Method.evaluate

    def watched(self, fleet, population, batch, decoding):
        populations[population.generation] = population.members
        return evaluate(self, fleet, population, batch, decoding)

    monkeypatch.setattr(Method, "evaluate", watched)
    finish(germline.train(settings(*STRATEGIES[name]), tmp_path / "run"))
    weights = ServedWeights.open(str(tmp_path / "run"))
    for generation in (3, 0, 1, 2):
        for number, member in enumerate(populations[generation]):
            selected = weights.select(f"gen-{generation}/member-{number}")
            assert selected.member == member
            assert selected.generation == generation - 1
            before = digests(tmp_path / "run")[generation]
            assert selected.fingerprint == f"{before}/gen-{generation}/member-{number}"


@pytest.mark.parametrize(
    "name",
    [
        *("gen-4", "gen--1", "gen-01", "gen-1/member-6", "gen-4/member-0", "gen-1/member-"),
        *("GEN-1", "", "nano", "gen-1/member-1/x", "gen-" + "9" * 5000, "gen-\u0661", "gen-1\n"),
    ],
)
def test_an_unknown_name_is_a_404_that_lists_the_names(weights, name):
    error = refusal(weights, name)
    assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
    assert "base, center, gen-0 to gen-3, gen-0/member-0 to gen-3/member-5" in error.detail
    assert len(error.detail) < 400


def test_a_model_has_its_only_weights_under_two_names():
    weights = ServedWeights.open("nano", overrides=["engine=toy"])
    assert weights.names() == ["base", "center"]
    assert weights.select("base") == weights.select("center")
    assert digest(weights, "base") == weights.select("base").fingerprint
    assert refusal(weights, "gen-0").detail.endswith("this server has base, center")


def test_generations_appear_while_the_run_is_trained(tmp_path):
    begun = germline.train(settings(), tmp_path / "run")
    records = iter(begun)
    next(records)
    weights = ServedWeights.open(str(tmp_path / "run"))
    assert weights.names() == ["base", "center", "gen-0"]
    assert refusal(weights, "gen-1").status_code == 404
    next(records)
    assert weights.names() == ["base", "center", "gen-0", "gen-1"]
    assert digest(weights, "gen-1") == digests(tmp_path / "run")[2]
    assert weights.select("gen-1/member-0").generation == 0
    assert weights.select("center") == weights.select("gen-0")
    for _ in records:
        pass


def test_the_center_of_voting_members_is_the_best_of_them(tmp_path):
    folder = run(tmp_path / "run", *VOTES)
    weights = ServedWeights.open(str(folder))
    center = weights.engine.weights.digest()
    assert center != digests(folder)[0]
    assert weights.names() == ["base", "center"]  # no generation has weights of its own
    for name, expected in (("base", digests(folder)[0]), ("center", center)):
        assert digest(weights, name) == expected
        assert weights.select(name).fingerprint == expected


def test_a_run_without_a_generation_is_its_start(tmp_path, trained):
    begun = germline.train(settings(), tmp_path / "run")
    weights = ServedWeights.open(str(tmp_path / "run"))
    assert weights.names() == ["base", "center"]
    assert weights.select("base") == weights.select("center")
    assert "gen" not in refusal(weights, "x").detail
    begun._parts.close()
    begun.directory.release_lock()


def test_rebuilt_weights_are_verified(trained, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    shutil.rmtree(copy / "snapshots")
    weights = ServedWeights.open(str(copy))
    of_gen_0 = load_engine(RunDirectory.open(copy), generation=0).weights.digest()
    assert digest(weights, "gen-0") == of_gen_0
    RunDirectory.open(copy).journal.cut(0)
    with pytest.raises(germline.GermlineError, match="generation 1 is not in the journal"):
        weights.load(SelectedWeights(1, None, ""))
