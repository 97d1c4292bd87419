"""A run that is stopped, made longer, replayed or spread over engines has the same bits."""

import shutil

import pytest

from germline.record import RunDirectory
from germline.run import replay, resume, train
from tests.slow_cases import mostly_slow
from tests.small_runs import ROWS
from tests.toy_runs import finish, journal, rows, run, settings, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

ADAM, FULL, LORA = "strategy.optimizer=adam", "space=full", "space=lora"
MOMENTUM = "strategy.optimizer={kind: sgd, momentum: 0.9, weight_decay: 1, decay_to: start}"
AUTO = "strategy={kind: nes, population: 6}"
SUCCESS = "strategy.sigma={kind: success, start: 0.4, rate: 0.3}"
NATURAL = "strategy.sigma={kind: natural, start: 0.3, rate: 20}"
RUNNING = "strategy.baseline=running"
ALONE = ("strategy.antithetic=false", "shaping=raw", "strategy.learning_rate=0.02")
GROW = "strategy.zero_signal={kind: grow, factor: 2, most: 3}"
SILENT = ("task.temperature=0", "strategy.sigma=1e-7", "strategy.optimizer.weight_decay=0.5")
"""Members so near the center that all are equally good; weight decay acts all the same."""
CMA = "strategy={kind: cma, population: 6, sigma: 0.3}"
MIX = "space={kind: full, include: ['*mix*']}"
ZO_GRPO = ("method=zo_grpo", "strategy.learning_rate=auto", "method.rows_per_member=5")
LAGRANGE = (
    f"task={{kind: safe_alignment, path: {ROWS / 'safe_alignment.jsonl'}, test_split: null, "
    "scorers: {reward: {kind: repetition, ngram: 1}, cost: {kind: length, start: 0, end: 12}}, "
    "max_new_tokens: 16, temperature: 1, lambda_lr: 0.5}"
)
CHOICES = "prompt_search={template: ['{prompt}', 'Q: {prompt}'], temperature: [0.5, 1]}"

VARIANTS = {
    "low_rank, sgd": (),
    "low_rank, adam": (ADAM,),
    "full, sgd": (FULL,),
    "full, adam": (FULL, ADAM),
    "momentum and decay": (MOMENTUM,),
    "subspace": ("space={kind: subspace, dimension: 6}",),
    "measured once": (AUTO,),
    "measured again": (AUTO, "strategy.sigma={kind: auto, every: 2}"),
    "success": (SUCCESS,),
    "natural, full, adam": (NATURAL, FULL, ADAM),
    "natural, lora": (NATURAL, LORA),
    "skipping": (*SILENT, "strategy.zero_signal=skip"),
    "one member": (RUNNING, *ALONE, "strategy.population=1"),
    # With one token per answer most generations are ties.
    "all at once": (SUCCESS, RUNNING, *ALONE, GROW, "task.max_new_tokens=1"),
    "cma on whole tensors": (MIX, CMA, "strategy.sigma_unit=std"),
    "cma on an adapter": (LORA, CMA),
    "cma on a subspace": ("space={kind: subspace, dimension: 8}", CMA, "strategy.lr_adapt=true"),
    "sep_cma": (FULL, "strategy={kind: sep_cma, population: 6, sigma: 0.3}"),
    "sep_cma on singular values": (
        "space={kind: singular, top_k: 4}",
        "strategy={kind: sep_cma, population: 6, sigma: 0.3}",
    ),
    "zo_grpo": (*ZO_GRPO, "strategy.sigma={kind: auto, every: 1}"),
    "zo_grpo, several updates of a batch": (*ZO_GRPO, FULL, "method.updates_per_batch=3"),
    "plateau": ("strategy.sigma={kind: plateau, start: 0.4, patience: 1}",),
    "votes": (FULL, "method={kind: randopt, ensemble_size: 3}", "strategy.learning_rate=auto"),
    "samples": ("method.samples=3", "method.fitness=pass_at_k"),
    "lambda": (LAGRANGE, SUCCESS),
    "lambda, cma": (LAGRANGE, CMA, "space={kind: subspace, dimension: 4}"),
    "KL penalty": ("task.kl_coef=0.5",),
    "prompt search": ("task.temperature=0", CHOICES),
}
QUICK = {
    *("low_rank, sgd", "full, adam", "measured again", "all at once"),
    *("zo_grpo", "KL penalty", "prompt search"),
}
GENERATIONS = 5


@pytest.fixture(scope="module", params=mostly_slow(VARIANTS, QUICK))
def variant(request):
    return (*VARIANTS[request.param], f"generations={GENERATIONS}")


@pytest.fixture(scope="module")
def whole(variant, tmp_path_factory):
    """A run that was never interrupted."""
    return run(tmp_path_factory.mktemp("whole") / "run", *variant)


def test_a_run_stopped_after_every_generation_reaches_the_same_bits(variant, whole, tmp_path):
    path = stopped_after(train(settings(*variant), tmp_path / "run"), 1)
    for done in range(1, GENERATIONS):
        assert len(RunDirectory.open(path).journal.read()) == done
        if done == 3:  # the journal alone brings everything back
            shutil.rmtree(path / "snapshots")
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


@pytest.mark.usefixtures("engines_in_process")
def test_two_engines_write_the_journal_of_one(variant, whole, tmp_path):
    path = run(tmp_path / "run", *variant, "fleet.engines=2")
    assert journal(path) == journal(whole)
    assert rows(path)[1:] == rows(whole)[1:]
