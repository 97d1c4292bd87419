"""What a resumed run may change, and which old runs open."""

import pytest

from germline.config import Conciseness, load_config
from germline.record import RunDirectory
from germline.run.lifecycle import resumed_config
from germline.types import GermlineError
from tests.synthetic_runs import DIGEST
from tests.toy_runs import settings


def test_a_file_of_settings_resumes_like_the_settings_in_it(tmp_path):
    recorded = settings("fleet={engines: 2, quorum: 0.9}")
    file = tmp_path / "one.yaml"
    file.write_text("fleet: {engines: 1}\n")
    one = resumed_config(recorded, [str(file)])
    assert one == resumed_config(recorded, ["fleet.engines=1"])
    assert resumed_config(one, ["fleet.engines=2"]) == recorded


def test_another_fleet_keeps_what_it_shares_with_the_recorded_one():
    recorded = settings("fleet={engines: 2, quorum: 0.9}", "engine=inprocess")
    fleet = resumed_config(recorded, ["fleet.kind=ray"]).fleet
    assert (fleet.kind, fleet.engines, fleet.quorum) == ("ray", 2, 0.9)


def test_the_memory_of_an_engine_may_change():
    recorded = settings("engine.kind=vllm", "engine.options={gpu_memory_utilization: 0.9}")
    less = "engine.options.gpu_memory_utilization=0.5"
    resumed = resumed_config(recorded, [less])
    assert resumed.model_dump()["engine"]["options"] == {"gpu_memory_utilization": 0.5}


CMA = ("space=full", "strategy={kind: cma, population: 4, sigma: 0.1}")


@pytest.mark.parametrize(
    ("begun", "override", "setting"),
    [
        ((), "engine=inprocess", "engine.kind"),
        ((), "engine.kind=vllm", "engine.kind"),
        ((), "strategy.sigma=0.4", "strategy.sigma"),
        ((), "strategy.sigma={start: 0.3, end: 0.1}", "strategy.sigma"),
        ((), "batch_size=5", "batch_size"),
        ((), "task.temperature=0.5", "task.temperature"),
        ((), "space.rank=2", "space.rank"),
        ((), "shaping=centered_ranks", "shaping.kind"),
        ((), "microbatch.members=3", "microbatch.members"),
        ((), "seed=1", "seed"),
        # Where a section is of another kind, its other settings follow from that.
        (CMA, "strategy.kind=sep_cma", "strategy.kind"),
        (("strategy.sigma={kind: success, start: 0.1}",), "strategy.sigma=0.1", "strategy.sigma"),
    ],
)
def test_what_makes_another_run_is_refused_by_name(begun, override, setting):
    recorded = settings("strategy={kind: nes, antithetic: false}", *begun)
    with pytest.raises(GermlineError, match=rf"resume: {setting}\S* cannot change within a run"):
        resumed_config(recorded, [override])


def test_a_setting_that_the_resumed_run_would_ignore_is_refused():
    with pytest.raises(GermlineError, match=r"fleet\.quorum"):
        resumed_config(settings(), ["fleet.quorum=0.9"])


def test_a_run_opens_and_resumes_after_a_default_has_changed(tmp_path, monkeypatch):
    path = tmp_path / "run"
    RunDirectory.create(path, settings(), DIGEST, threads=1).release_lock()
    monkeypatch.setattr(Conciseness.model_fields["kl_per"], "default", "completion")
    recorded = RunDirectory.open(path).config
    assert recorded.task.kl_per == "token"
    assert resumed_config(recorded, ["generations=9"]).task.kl_per == "token"
    assert load_config(path).task.kl_per == "token"
