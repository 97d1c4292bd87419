"""The space of a sweep, and what samplers propose from it."""

import math
from pathlib import Path
from typing import Any, get_args

import pytest

from germline.studies.sweep import Sampler
from germline.studies.sweep_samplers import Samplers
from germline.studies.sweep_space import SweepSpace
from germline.types import GermlineError
from tests.slow_cases import mostly_slow

SPACE: dict[str, Any] = {
    "method.group_size": {"int": [2, 4], "when": {"method.kind": "zo_grpo"}},
    "strategy.sigma": {"log": [0.01, 1.0]},
    "method.kind": ["es", "zo_grpo"],
    "shaping": {"values": ["z_score", {"kind": "raw"}], "when": {"method.kind": ["es"]}},
}


def test_conditions_follow_what_they_name_and_every_value_has_a_corner() -> None:
    space = SweepSpace(SPACE)
    names = [one.name for one in space.dimensions]
    assert names[:2] == ["method.kind", "strategy.sigma"]
    corners = [settings for _, settings in space.corners()]
    assert {one["strategy.sigma"] for one in corners} == {0.01, 0.0464, 0.215, 1.0}
    assert {one.get("method.group_size") for one in corners} == {None, 2, 3, 4}
    assert all(("shaping" in one) == (one["method.kind"] == "es") for one in corners)
    grid = space.grid()
    sigmas = [0.01, 0.0464, 0.215, 1.0]
    assert [one["strategy.sigma"] for one in grid if one.get("shaping") == "z_score"] == sigmas
    assert len(grid) == 4 * 2 + 4 * 3


def test_ranges_in_units_of_the_probe() -> None:
    given = {"strategy.sigma": {"probe": [0.3, 3]}, "strategy.learning_rate": {"probe": [0.1, 1]}}
    space = SweepSpace(given)
    assert space.needs_probe
    units = {"strategy.sigma": 0.02, "strategy.learning_rate": 0.05}
    measured = space.in_units(units)
    assert not measured.needs_probe
    assert measured.given == {
        "strategy.sigma": {"log": [0.006, 0.06], "when": {}},
        "strategy.learning_rate": {"log": [0.005, 0.05], "when": {}},
    }
    with pytest.raises(GermlineError, match=r"is for strategy\.sigma and strategy\.learning_rate"):
        SweepSpace({"batch_size": {"probe": [1, 2]}}).in_units(units)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "the space is empty"),
        *(
            ({"batch_size": entry}, "batch_size: .* is no range: give a list")
            for entry in (
                *(8, [8], [8, 8], {"values": 8}, {"uniform": [1, 2]}, {"int": [1, 2.5]}),
                *({"int": [1, 2], "log": [1, 2]}, {"log": [0.1, "big"]}, {"log": [0.1, 0.01]}),
                *({"log": [0, 0.1]}, {"log": [0.1, 1], "when": "es"}, {"log": [0.1, math.inf]}),
                *({"log": [0.1, 10**400]}, {"int": [1, 10**400]}, {"linear": [math.nan, 1]}),
            )
        ),
        ({"shaping": ["raw", "z_score"], "space": {"values": ["full", "lora"],
          "when": {"method.kind": "es"}}}, "`when` asks for method.kind=.'es'"),
        ({"space": ["full", "lora"], "seed": {"int": [1, 2], "when": {"space": []}}}, "for space="),
        ({"space": ["full", "lora"], "seed": {"int": [1, 2], "when": {"space": 1}}}, "for space="),
    ],
)  # fmt: skip
def test_a_space_that_cannot_be_searched_is_refused(space: Any, message: str) -> None:
    with pytest.raises(GermlineError, match=message):
        SweepSpace(space)


@pytest.mark.parametrize("sampler", mostly_slow(get_args(Sampler), quick=["tpe", "grid"]))
def test_samplers_propose_settings_of_the_space_and_repeat_themselves(
    sampler: str, tmp_path: Path
) -> None:
    numeric = {"strategy.sigma": {"log": [0.01, 1.0]}, "batch_size": {"int": [2, 9]}}
    space = SweepSpace(numeric if sampler == "cmaes" else SPACE)
    proposed = []
    for url in (f"sqlite:///{tmp_path}/one.db", f"journal://{tmp_path}/two.log"):
        made = Samplers(space, url, "sweep", 1, seed=3)
        trials = []
        for place in range(8):
            if place == 6:  # another process goes on
                made = Samplers(space, url, "sweep", 1, seed=3)
            asked = made.ask(sampler)
            assert asked is not None
            number, settings = asked
            assert number == place
            made.tell(sampler, {number: (settings, [settings["strategy.sigma"]])})
            made.tell(sampler, {number: (settings, [99.0])})  # what was told stays
            trials.append(settings)
        proposed.append(trials)
        for one in trials:
            assert 0.01 <= one["strategy.sigma"] <= 1
            assert ("method.group_size" in one) == (one.get("method.kind") == "zo_grpo")
    assert proposed[0] == proposed[1]
    assert len({str(one) for one in proposed[0]}) > 4


def test_a_grid_ends_and_objectives_may_be_several(tmp_path: Path) -> None:
    space = SweepSpace({"batch_size": [2, 4, 8]})
    made = Samplers(space, f"sqlite:///{tmp_path}/s.db", "sweep", 2, seed=0)
    asked = [made.ask("grid") for _ in range(4)]
    assert asked[3] is None
    assert sorted(one[1]["batch_size"] for one in asked if one) == [2, 4, 8]
    first = made.ask("tpe")
    assert first is not None
    made.tell("tpe", {first[0]: (first[1], [1.0, 2.0])})


def test_a_value_has_a_place_on_the_axis_of_its_setting() -> None:
    given = {"a": {"log": [0.001, 1]}, "b": [1, 10], "c": ["x", "y", "z"], "d": {"int": [2, 5]}}
    log, numbers, texts, whole = SweepSpace(given).dimensions
    values = (0.0009, 0.001, 0.004, 0.1, 1, 1.1)
    assert [log.place({"a": one}) for one in values] == [None, 0, 1, 2, 3, None]
    assert log.share({"a": 0.1}) == pytest.approx(2 / 3)
    assert log.share({}) is None
    assert [numbers.place({"b": one}) for one in (1, 3, 4, 10, 11)] == [0, 0, 1, 1, None]
    assert [texts.share({"c": one}) for one in ("x", "y", "z", "w")] == [0, 0.5, 1, None]
    assert [whole.place({"d": one}) for one in (2, 3, 5)] == [0, 1, 3]


def test_a_storage_that_goes_away_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "db"
    folder.mkdir()
    space = SweepSpace({"batch_size": [2, 4]})
    made = Samplers(space, f"sqlite:///{folder}/s.db", "sweep", 1, seed=0)
    assert made.ask("tpe")
    (folder / "s.db").write_bytes(b"no database")
    with pytest.raises(
        GermlineError, match=r"the storage .* cannot be used: .*all trials are kept"
    ):
        made.ask("tpe")
