"""A new run from a generation of an old one: whole by itself, and exact, however deep the line."""

import json
import shutil
from dataclasses import replace

import pytest

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.record.journal import Ancestor, write_journal
from germline.record.metrics_rows import held_out_row
from germline.run.build_parts import make_engine
from germline.run.lifecycle import forked_config
from germline.run.weights import load_engine
from germline.types import GermlineError, HeldOutScore, Update
from tests.toy_runs import finish, journal, run, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

VARIANTS = [
    pytest.param(("space=low_rank",), marks=pytest.mark.slow),  # nothing but weights is inherited
    ("space=full", "strategy.optimizer={kind: sgd, momentum: 0.9}"),
    pytest.param(("space=lora",), marks=pytest.mark.slow),
    ("space.kind=subspace", "space.dimension=6"),
    ("space=low_rank", "strategy.sigma_unit=std", "strategy.sigma={kind: natural, start: 0.3}"),
    ("space=full", "strategy={kind: sep_cma, sigma: 0.3, population: 6}"),
]
OTHERWISE = (
    "generations=3",
    "strategy={kind: nes, population: 4, sigma: 0.2, learning_rate: 0.05, "
    "optimizer: {kind: adam, weight_decay: 1, decay_to: start}}",
)


def theta(folder, generation=None):
    """Return the searched numbers of a run after a generation, the last one by default."""
    directory = RunDirectory.open(folder)
    if generation == -1:
        weights = make_engine(directory.config, ancestors=directory.ancestors).weights
    else:
        weights = load_engine(directory).weights
    state = weights.state()
    names = [name for name in state if not name.endswith((".m", ".v", ".scale"))]
    return {name: state[name].clone() for name in names}


def replays(folder):
    """Rebuild every generation of a run from its directory alone, digests verified."""
    count = RunDirectory.open(folder).journal.last_generation() + 1
    return [germline.replay(folder, generation) for generation in range(-1, count)]


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda one: "-".join(one)[:40])
def parent(request, tmp_path_factory):
    return run(tmp_path_factory.mktemp("parent") / "run", *request.param)


def test_a_fork_starts_from_the_weights_of_the_old_run_after_that_generation(parent, tmp_path):
    training = germline.fork(parent, 3, OTHERWISE, tmp_path / "new")
    expected = theta(parent)
    assert expected.keys() == theta(training.directory.path, -1).keys()
    for name, tensor in theta(training.directory.path, -1).items():
        assert tensor.equal(expected[name])
    finish(training)
    moved = theta(training.directory.path)
    assert any(not moved[name].equal(expected[name]) for name in moved)


def test_a_fork_and_its_own_fork_replay_and_resume_when_their_parents_are_gone(parent, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(parent, old)
    child = finish(germline.fork(old, 1, OTHERWISE, tmp_path / "child"))
    grandchild = finish(germline.fork(child, 1, ["strategy.sigma=0.1"], tmp_path / "grand"))
    shutil.rmtree(old)
    again = finish(germline.fork(child, 1, ["strategy.sigma=0.1"], tmp_path / "again"))
    assert journal(again) == journal(grandchild)
    shutil.rmtree(child)
    stopped = stopped_after(
        germline.fork(grandchild, -1, [f"seed={seed_of(grandchild)}"], tmp_path / "stopped"), 1
    )
    shutil.rmtree(stopped / "snapshots")
    finish(germline.resume(stopped))
    assert journal(stopped) == journal(grandchild)  # --from -1 with the same seed repeats a run
    assert replays(grandchild)[1:] == replays(stopped)[1:]
    germline.evaluate(str(grandchild), limit=2)
    germline.write_report(grandchild)


def seed_of(folder):
    return RunDirectory.open(folder).config.seed


def test_ancestors_are_in_run_json_with_path_generation_and_digests(plain, tmp_path):
    child = finish(germline.fork(plain, 1, OTHERWISE, tmp_path / "child"))
    grandchild = germline.fork(child, 0, (), tmp_path / "grand").directory
    facts = json.loads((grandchild.path / "run.json").read_text())
    first, second = facts["ancestry"]
    entries = RunDirectory.open(plain).journal.read()
    assert (first["path"], first["generation"]) == (str(plain), 1)
    assert first["digest"] == entries[1].digest
    assert first["base_digest"] == RunDirectory.open(plain).base_digest
    assert (second["path"], second["generation"]) == (str(child), 0)
    assert second["base_digest"] == RunDirectory.open(child).base_digest
    lines = journal(plain).splitlines(keepends=True)
    assert (grandchild.path / "ancestors" / "0.jsonl").read_bytes() == b"".join(lines[:2])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain") / "run")


def test_a_fork_repeats_neither_the_perturbations_nor_the_batches_of_its_parent(plain, tmp_path):
    child = finish(germline.fork(plain, 1, (), tmp_path / "child"))
    assert seed_of(child) != seed_of(plain)
    assert journal(finish(germline.fork(plain, 1, (), tmp_path / "same"))) == journal(child)
    told = germline.fork(plain, 1, ["seed=7"], tmp_path / "seven")
    assert told.config.seed == 7


def test_engines_of_a_fleet_start_where_one_engine_does(plain, tmp_path):
    alone = finish(germline.fork(plain, 2, ["generations=2"], tmp_path / "alone"))
    several = finish(
        germline.fork(plain, 2, ["generations=2", "fleet.engines=2"], tmp_path / "several")
    )
    assert journal(several) == journal(alone)


def test_best_is_the_generation_before_the_best_held_out_score(plain, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(plain, old)
    rows = [
        held_out_row(HeldOutScore(updates, "exact", mean, 0.1, 5, mean, higher_is_better=True))
        for updates, mean in ((0, 0.1), (2, 0.6), (4, 0.4))
    ]
    (old / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = germline.fork(old, "best", (), tmp_path / "new")
    assert training.directory.ancestors[-1].generation == 1
    costs = [row | {"higher_is_better": False} for row in rows]
    (old / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in costs))
    training = germline.fork(old, "best", (), tmp_path / "other")
    assert training.directory.ancestors[-1].generation == -1


@pytest.mark.parametrize(
    ("generation", "override", "message"),
    [
        (4, "seed=1", "generation 4 is not in .*0 to 3"),
        (-2, "seed=1", "generation -2 is not in .*0 to 3"),
        (1, "space=full", "space.* cannot change.*export"),
        (1, "space.rank=2", r"space\.rank cannot change.*export"),
        (1, "engine=inprocess", r"engine\.kind=inprocess has another model than toy"),
    ],
)
def test_what_no_fork_can_start_from_is_refused(plain, generation, override, message, tmp_path):
    with pytest.raises(GermlineError, match=message):
        germline.fork(plain, generation, [override], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_another_model_is_refused(tmp_path):
    config = load_config({"task": "arithmetic"})
    with pytest.raises(GermlineError, match=r"model cannot change.*'nano'.*'/other'"):
        forked_config(config, ["model=/other"], Ancestor("run", -1, "0" * 64, config, ()))


def test_weights_that_followed_gradients_are_refused_with_what_to_do(plain, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(plain, old)
    entries = RunDirectory.open(old).journal.read()
    updates = [one.update for one in entries if isinstance(one.update, Update)]
    followed = [
        replace(one, update=replace(update, backpropagated=True))
        for one, update in zip(entries, updates, strict=True)
    ]
    write_journal(old / "journal.jsonl", followed)
    with pytest.raises(GermlineError, match=r"followed gradients.*export .*-generation 1"):
        germline.fork(old, 1, (), tmp_path / "new")


def test_a_run_that_moves_no_weights_is_refused(tmp_path):
    section = "strategy={population: 6, sigma: 0.3}"
    old = run(
        tmp_path / "old", section, "method={kind: randopt, ensemble_size: 2}", "generations=1"
    )
    with pytest.raises(GermlineError, match="randopt changes no weights"):
        germline.fork(old, 0, (), tmp_path / "new")


def test_a_damaged_ancestor_is_noticed(plain, tmp_path):
    child = finish(germline.fork(plain, 2, ["generations=1"], tmp_path / "child"))
    with pytest.raises(GermlineError, match=r"was forked.*resume .*--from -1"):
        load_config(child / "run.json")
    file = child / "ancestors" / "0.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:2]))
    with pytest.raises(GermlineError, match=r"0\.jsonl is not the journal that run\.json"):
        germline.replay(child, 0)
    file.unlink()
    with pytest.raises(GermlineError, match=r"0\.jsonl is not the journal that run\.json"):
        germline.resume(child)
