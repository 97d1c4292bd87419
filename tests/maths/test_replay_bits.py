"""A run that is stopped, resumed, made longer or replayed has the same bits."""

import pytest

from germline.record import RunDirectory
from germline.run import replay, resume, train
from tests.toy_runs import finish, journal, rows, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

VARIANTS = [
    (space, optimizer)
    for space in ("space=low_rank", "space=full")
    for optimizer in ("strategy.optimizer=sgd", "strategy.optimizer=adam")
] + [
    (
        "space=low_rank",
        "strategy.optimizer={kind: sgd, momentum: 0.9, weight_decay: 1, decay_to: start}",
    )
]


GENERATIONS = 5


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda one: "-".join(one))
def variant(request):
    return (*request.param, f"generations={GENERATIONS}")


@pytest.fixture(scope="module")
def whole(variant, tmp_path_factory):
    """A run that was never interrupted."""
    return run(tmp_path_factory.mktemp("whole") / "run", *variant)


def test_a_run_stopped_after_every_single_generation_reaches_the_same_bits(
    variant, whole, tmp_path
):
    path = stopped_after(train(settings(*variant), tmp_path / "run"), 1)
    for done in range(1, GENERATIONS):
        assert len(RunDirectory.open(path).journal.read()) == done
        stopped_after(resume(path), 1)
    finish(resume(path))
    assert journal(path) == journal(whole)
    assert rows(path) == rows(whole)


def test_a_finished_run_with_more_generations_reaches_the_same_bits(variant, whole, tmp_path):
    path = run(tmp_path / "run", *variant, "generations=3")
    finish(resume(path, [f"generations={GENERATIONS}"]))
    assert journal(path) == journal(whole)
    assert RunDirectory.open(path).config.generations == GENERATIONS


def test_every_generation_is_replayed_to_its_digest(variant, whole):
    for generation, entry in enumerate(RunDirectory.open(whole).journal.read()):
        assert replay(whole, generation) == entry.digest
