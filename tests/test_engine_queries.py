"""A read-only question to engines is written once, and every fleet and wrapper passes it on."""

from dataclasses import dataclass, replace

import pytest

from germline.fleet.engine_queries import (
    DimensionQuery,
    LogProbabilitiesQuery,
    ScalesQuery,
    with_each,
)
from germline.fleet.remote_engine import JobDone
from germline.protocols import Engine, Fleet
from germline.run.build_parts import make_engine
from germline.types import Completion
from tests.remote_engines import (
    CONFIG,
    DECODING,
    EXAMPLES,
    STRATEGY,
    UPDATES,
    evaluated,
    fleet_of,
    local,
    pool,
)
from tests.wrappers import EngineWrapper, FleetWrapper

MEMBERS = [None, *STRATEGY.ask(0).members[:2]]


@dataclass(frozen=True)
class SearchedNames:
    """A question of this test: the names of the searched tensors."""

    def __call__(self, engine):
        return sorted(engine.weights.scales())

    def is_valid_result(self, answer):
        return isinstance(answer, list)


def written():
    (row,) = make_engine(CONFIG).generate([None], EXAMPLES, DECODING)
    return LogProbabilitiesQuery(MEMBERS, EXAMPLES, [row] * len(MEMBERS))


def test_a_question_of_another_package_is_answered_by_every_fleet():
    expected = sorted(make_engine(CONFIG).weights.scales())
    for fleet in (local(), fleet_of(pool(2)), FleetWrapper(local())):
        assert fleet.query(SearchedNames()) == expected


@pytest.mark.parametrize("query", [DimensionQuery(), ScalesQuery(), written()], ids=type)
def test_engines_elsewhere_answer_as_one_here(query):
    alone, fleet = local(), fleet_of(pool(2))
    assert fleet.query(query) == alone.query(query) == query(make_engine(CONFIG))


def test_a_question_is_answered_with_the_newest_update():
    alone, fleet = local(), fleet_of(pool(2))
    before = alone.query(written())
    for one in (alone, fleet):
        one.apply(UPDATES[0])
    assert fleet.query(written()) == alone.query(written()) != before


def test_engines_are_not_sent_what_only_graders_need():
    engines = pool(1)
    fleet_of(engines).query(written())
    (asked,) = [job for job in engines[0].jobs if isinstance(job, LogProbabilitiesQuery)]
    assert {(one.answer, tuple(one.facts)) for one in asked.examples} == {("", ())}


@pytest.mark.parametrize(
    ("query", "garbage"),
    [
        (DimensionQuery(), -1),
        (ScalesQuery(), {"a": "wide"}),
        (written(), [[()] * len(EXAMPLES)] * (len(MEMBERS) - 1)),
        (written(), [[()] * len(EXAMPLES)] * len(MEMBERS)),
    ],
    ids=["dimension", "scales", "members", "tokens"],
)
def test_an_impossible_answer_is_a_loss_of_the_engine(query, garbage):
    times = iter(range(100))

    def fault(_engine, job):
        return JobDone(garbage) if isinstance(job, type(query)) and next(times) == 0 else None

    engines = pool(1, fault)
    assert fleet_of(engines).query(query) == local().query(query)
    assert engines[0].starts == 2


def test_the_items_of_a_field_are_changed_where_there_is_such_a_field():
    query = LogProbabilitiesQuery([None], EXAMPLES[:2], [[Completion("", (), "eos", 1)] * 2])
    changed = with_each(query, "examples", lambda example: replace(example, answer=""))
    assert [one.answer for one in changed.examples] == ["", ""]
    assert [one.index for one in changed.examples] == [one.index for one in EXAMPLES[:2]]
    assert changed.members == query.members
    assert with_each(DimensionQuery(), "examples", repr) == DimensionQuery()


# --- wrappers


class Recorder:
    """Has every member of a protocol, and remembers which were used with which arguments."""

    def __init__(self):
        self.used = []

    def __getattr__(self, name):
        def use(*args, **kwargs):
            self.used.append((name, args, kwargs))
            return name

        return "masters" if name == "weights" else use


@pytest.mark.parametrize(("wrapper", "protocol"), [(EngineWrapper, Engine), (FleetWrapper, Fleet)])
def test_a_wrapper_passes_every_member_of_its_protocol_on(wrapper, protocol):
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert len(names) > 6
    inner = Recorder()
    wrapped = wrapper(inner)
    for name in names:
        assert name in vars(wrapper), "isinstance of later Pythons looks at the class alone"
        if name == "weights":
            assert wrapped.weights == "masters"
        else:
            assert getattr(wrapped, name)(1, two=2) == name
            assert inner.used[-1] == (name, (1,), {"two": 2})
        assert getattr(wrapper, name).__doc__ == getattr(protocol, name).__doc__


def test_a_method_that_a_subclass_defines_replaces_the_delegating_one():
    class Mute(FleetWrapper):
        def digest(self):
            return "mute"

    fleet = Mute(local())
    assert isinstance(fleet, Fleet)
    assert fleet.digest() == "mute"
    assert evaluated(fleet).rewards.shape == (6, len(EXAMPLES))
