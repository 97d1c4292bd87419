"""Mistake 17: every setting takes effect, with one row here per setting."""

import functools
import sys
import threading

import pytest
import torch

from germline.generation_loop import generations
from germline.record import RunDirectory
from germline.run import build_run_parts, train
from tests.hang_limit import HANG_S
from tests.tiny import save_tiny
from tests.toy_runs import SETTINGS, grading_in_process, run, settings

COSINE_SIGMA = ["generations=3", "strategy.sigma={kind: cosine, start: 0.3, end: 0.1}"]
COSINE_RATE = ["generations=4", "strategy.learning_rate={kind: cosine, start: 0.3, end: 0.1}"]
SIGMAS = ["strategy.sigma={start: 0.3, end: 0.1}"]
RATES = ["strategy.learning_rate={start: 0.3, end: 0.1}"]
PLATEAU = ["generations=5", "strategy.sigma={kind: plateau, start: 0.3, patience: 1}"]
SUCCESS = ["generations=3", "strategy.sigma={kind: success, start: 0.3}"]
AUTO = ["strategy.sigma=auto", "strategy.learning_rate=auto"]
# No sigma but a tiny one at first: generations without a signal let it grow.
GROWING = [
    *("task.temperature=0", "generations=4", "strategy.population=128"),
    "strategy.sigma={kind: auto, target_kl: 0.00001, max_kl: 0.2}",
]
MEASURED = ["generations=3", "strategy.learning_rate={kind: auto, least_step: 0.001}"]
SEP_CMA = [
    "generations=4",
    "space={kind: full, include: ['*mix*']}",
    "strategy={kind: sep_cma, population: 6, sigma: 0.3}",
]
UNPAIRED = ["shaping=raw", "strategy.antithetic=false", "strategy.learning_rate=0.01"]
RUNNING = [*UNPAIRED, "generations=3", "strategy.baseline=running"]
ZO_GRPO = ["method={kind: zo_grpo, group_size: 3}"]
# Members so near that all are equally good: weight decay acts all the same, unless it is skipped.
SILENT = ["task.temperature=0", "strategy.sigma=1e-7", "strategy.optimizer.weight_decay=0.5"]

# setting: (what it is compared with, the change), seen in the digests of two generations or more.
CHANGES_THE_WEIGHTS = {
    "task.kind": ([], "task.kind=arithmetic"),
    "task.max_new_tokens": ([], "task.max_new_tokens=2"),
    "task.stop": ([], "task.stop=[x]"),
    "task.temperature": ([], "task.temperature=0"),
    "task.top_p": ([], "task.top_p=0.1"),
    "task.data": ([], "task.data=paper"),
    "task.split_seed": ([], "task.split_seed=1"),
    "task.kl_coef": ([], "task.kl_coef=5"),
    "task.kl_estimator": (["task.kl_coef=5"], "task.kl_estimator=k1"),
    "task.kl_per": (["task.kl_coef=5"], "task.kl_per=completion"),
    "space.kind": ([], "space=full"),
    "space.include": ([], "space.include=['*mix*']"),
    "space.exclude": ([], "space.exclude=['*mix*']"),
    "space.layers": (["space=full"], "space.layers=0"),
    "space.rank": ([], "space.rank=2"),
    "space.alpha": (["space=lora"], "space.alpha=4"),
    "space.init_scale_a": (["space=lora"], "space.init_scale_a=2"),
    "space.init_scale_b": (["space=lora"], "space.init_scale_b=0.3"),
    "space.freeze_a": (["space=lora"], "space.freeze_a=true"),
    "space.dimension": (["space=subspace"], "space.dimension=32"),
    "space.top_k": (["space={kind: singular, top_k: 4}"], "space.top_k=8"),
    "strategy.kind": (SEP_CMA, "strategy.kind=cma"),
    "strategy.population": ([], "strategy.population=8"),
    "strategy.covariance_rate": (SEP_CMA, "strategy.covariance_rate=0.1"),
    "strategy.lr_adapt": ([*SEP_CMA, "strategy.kind=cma"], "strategy.lr_adapt=true"),
    "strategy.antithetic": ([], "strategy.antithetic=false"),
    "strategy.sigma": ([], "strategy.sigma=0.2"),
    "strategy.sigma.start": (SIGMAS, "strategy.sigma.start=0.4"),
    "strategy.sigma.end": (SIGMAS, "strategy.sigma.end=0.4"),
    "strategy.sigma.kind": (SIGMAS, "strategy.sigma={kind: plateau, start: 0.3}"),
    "strategy.sigma.warmup": (COSINE_SIGMA, "strategy.sigma.warmup=1"),
    "strategy.sigma.factor": (PLATEAU, "strategy.sigma.factor=0.3"),
    "strategy.sigma.patience": (PLATEAU, "strategy.sigma.patience=3"),
    "strategy.sigma.min": (PLATEAU, "strategy.sigma.min=0.25"),
    "strategy.sigma.target": (SUCCESS, "strategy.sigma.target=0.4"),
    "strategy.sigma.target_kl": (AUTO, "strategy.sigma.target_kl=0.01"),
    "strategy.sigma.max_kl": (GROWING, "strategy.sigma.max_kl=0.0001"),
    "strategy.sigma.every": (AUTO, "strategy.sigma.every=1"),
    "strategy.sigma.pairs": (AUTO, "strategy.sigma.pairs=3"),
    "strategy.sigma.rate": (SUCCESS, "strategy.sigma.rate=1"),
    "strategy.sigma.max": (SUCCESS, "strategy.sigma.max=0.31"),
    "strategy.baseline.kind": (UNPAIRED, "strategy.baseline=running"),
    "strategy.baseline.decay": (RUNNING, "strategy.baseline.decay=0.1"),
    "strategy.zero_signal.kind": (SILENT, "strategy.zero_signal=skip"),
    "strategy.sigma_unit": ([], "strategy.sigma_unit=mean_abs"),
    "strategy.learning_rate": ([], "strategy.learning_rate=0.2"),
    "strategy.learning_rate.start": (RATES, "strategy.learning_rate.start=0.4"),
    "strategy.learning_rate.end": (RATES, "strategy.learning_rate.end=0.4"),
    "strategy.learning_rate.kind": (COSINE_RATE, "strategy.learning_rate.kind=linear"),
    "strategy.learning_rate.warmup": (COSINE_RATE, "strategy.learning_rate.warmup=1"),
    "strategy.learning_rate.step": (MEASURED, "strategy.learning_rate.step=0.05"),
    "strategy.learning_rate.max_step": (MEASURED, "strategy.learning_rate.max_step=0.01"),
    "strategy.learning_rate.least_step": (MEASURED, "strategy.learning_rate.least_step=0.2"),
    "strategy.learning_rate.memory": (MEASURED, "strategy.learning_rate.memory=0.1"),
    "strategy.optimizer.momentum": ([], "strategy.optimizer.momentum=0.5"),
    "strategy.optimizer.weight_decay": ([], "strategy.optimizer.weight_decay=0.5"),
    "strategy.optimizer.decay_to": (
        ["strategy.optimizer.weight_decay=0.5"],
        "strategy.optimizer.decay_to=start",
    ),
    "strategy.optimizer.kind": ([], "strategy.optimizer=adam"),
    "strategy.optimizer.beta1": (["strategy.optimizer=adam"], "strategy.optimizer.beta1=0.5"),
    "strategy.optimizer.beta2": (["strategy.optimizer=adam"], "strategy.optimizer.beta2=0.5"),
    "strategy.optimizer.epsilon": (["strategy.optimizer=adam"], "strategy.optimizer.epsilon=0.1"),
    "shaping.kind": ([], "shaping=centered_ranks"),
    "shaping.clip": ([], "shaping.clip=0.5"),
    "shaping.scale": (["shaping=per_example"], "shaping.scale=std"),
    "method.scale_rewards": (ZO_GRPO, "method.scale_rewards=none"),
    "batch_size": ([], "batch_size=5"),
    "seed": ([], "seed=1"),
}


@functools.cache
def digests(*overrides):
    with grading_in_process(), build_run_parts(settings("generations=2", *overrides)) as parts:
        span = range(parts.config.generations)
        loop = generations(parts.method, parts.fleet, parts.batch, parts.decoding, span)
        return [record.digest for record in loop]


@pytest.mark.parametrize("setting", CHANGES_THE_WEIGHTS)
def test_a_change_reaches_the_weights(setting):
    base, change = CHANGES_THE_WEIGHTS[setting]
    assert digests(*base, change) != digests(*base)


def test_what_is_recorded_follows_the_settings(tmp_path):
    changes = ["generations=5", "held_out={every: 3, examples: 7}", "record.tensorboard=true"]
    changes += ["record.snapshot_every=1", "record.keep_snapshots=4", "record.rollouts=3"]
    directory = RunDirectory.open(run(tmp_path / "run", *changes))
    assert len(directory.journal.read()) == 5
    scores = [(one.score.generation, one.score.n) for one in directory.held_out()]
    assert scores == [(0, 7), (3, 7), (5, 7)]
    scored = [row["generation"] for row in directory.generations() if "held_out" in row]
    assert scored == [2]
    assert len(list(directory.snapshots.iterdir())) == 4
    assert len(directory.rollouts()) == 15
    assert list(directory.tensorboard.iterdir())
    plain = RunDirectory.open(run(tmp_path / "plain", "record.rollouts=0"))
    assert plain.rollouts() == []
    assert not plain.tensorboard.exists()


def test_as_many_graders_work_as_asked_for():
    before = threading.active_count()
    with build_run_parts(settings("graders.workers=3")):
        assert threading.active_count() == before + 3


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits hold on Linux only")
def test_a_grader_out_of_memory_gives_the_floor(tmp_path):
    (tmp_path / "hungry.py").write_text(
        "train = [{'prompt': f'{n}'} for n in range(9)]\n"
        "def reward(completion, example):\n"
        "    return float(len(bytearray(300_000_000 * (completion == 'much'))) == 0)\n"
    )
    task = f"task={{kind: {tmp_path / 'hungry.py'}}}"
    with build_run_parts(settings(task, "graders.memory_gb=0.3")) as parts:
        asked = parts.task.examples("train")[:2]
        much, little = parts.graders.submit(["much", "little"], asked).result(timeout=HANG_S)
    assert much.failure == "out of memory: it needs more than 0.3 GB (graders.memory_gb)"
    assert (much.reward, little.reward, little.failure) == (0.0, 1.0, None)


def test_threads_are_set_and_recorded(tmp_path):
    before = torch.get_num_threads()
    try:
        engine = {"kind": "inprocess", "threads": 2}
        values = {**SETTINGS, "model": str(save_tiny(tmp_path / "model")), "engine": engine}
        assert train(values, tmp_path / "run").directory.environment["threads"] == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
