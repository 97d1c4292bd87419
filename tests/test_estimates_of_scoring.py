"""What a run needs whose members score the samples of the center."""

from dataclasses import replace

import pytest

from germline.config import load_config
from germline.estimates.estimate import estimate
from germline.estimates.hardware import GPUS
from germline.estimates.memory import kv_bytes, memory_parts
from germline.estimates.model_shape import shape_of
from tests.test_estimates import QWEN, TEXTS, part, work_of

ZO_GRPO = {
    "method": {"kind": "zo_grpo", "group_size": 4, "rows_per_member": 6},
    "strategy": {"population": 16},
    "batch_size": 8,
}


def test_where_members_score_only_the_samples_of_the_center_have_a_cache():
    config, shape, work = work_of(ZO_GRPO)
    assert (work.rows, work.generating, work.microbatches, work.scored) == (32, 1, 1, 6)
    assert work.scored_examples == 4
    same_rows = work_of({"strategy": {"population": 4}})[2]
    assert part(memory_parts(config, shape, work), "KV cache").bytes == kv_bytes(shape, same_rows)
    assert part(memory_parts(config, shape, work), "members").phase == "scoring"


def test_the_time_of_scoring_grows_with_members_and_with_rows():
    def score(population=16, rows=6):
        settings = load_config(
            ZO_GRPO, [f"strategy.population={population}", f"method.rows_per_member={rows}"]
        )
        return estimate(settings, shape_of(QWEN), TEXTS, GPUS["80gb"]).seconds.score

    assert score(population=64) > score() > score(rows=1) > 0
    assert estimate(load_config({}), shape_of(QWEN), TEXTS, GPUS["80gb"]).seconds.score == 0


def test_the_time_of_a_run_counts_its_held_out_scores_and_its_calibration():
    def run(*changes, held_out=8):
        strategy = {"population": 16, "sigma": 1e-3, "learning_rate": 1e-3}
        config = load_config({"strategy": strategy, "generations": 10}, list(changes))
        texts = replace(TEXTS, held_out=held_out)
        return estimate(config, shape_of(QWEN), texts, GPUS["80gb"])

    generations = 10 * run().seconds.total
    assert run(held_out=0).run_s == generations
    two, three = run("held_out.every=10"), run("held_out.every=5")
    assert three.run_s - generations == pytest.approx(1.5 * (two.run_s - generations))
    assert two.run_s > generations
    few = run("strategy.sigma={kind: auto, pairs: 2}", held_out=0).run_s
    assert run("strategy.sigma=auto", held_out=0).run_s > few > generations
