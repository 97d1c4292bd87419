"""Short names: found in the table or among plugins, and a suggestion for a typing error."""

from importlib.metadata import EntryPoint

import pytest

from germline import registry
from germline.engines import ENGINES
from germline.registry import did_you_mean, list_names, resolve
from germline.spaces import SPACES
from germline.strategies import STRATEGIES
from germline.tasks import TASKS
from germline.types import GermlineError

ROOMS = {"tasks": TASKS, "spaces": SPACES, "strategies": STRATEGIES, "engines": ENGINES}


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_every_room_leads_to_what_makes_it(room):
    for name in ROOMS[room]:
        assert callable(resolve(room, ROOMS[room], name))


def test_an_unknown_name_gets_a_suggestion_and_the_choice():
    with pytest.raises(GermlineError) as caught:
        resolve("tasks", TASKS, "countdwn")
    assert str(caught.value) == (
        "tasks: 'countdwn' is not known (did you mean 'countdown'?); choose one of "
        + ", ".join(sorted(TASKS))
    )


def test_a_name_like_no_other_gets_no_suggestion():
    assert did_you_mean("xyz", TASKS) == ""
    assert did_you_mean("arithmetics", TASKS) == " (did you mean 'arithmetic'?)"


def test_what_a_plugin_offers_is_found_by_name(monkeypatch):
    """The metadata of an installed package, as `importlib` would return it."""
    offered = {"germline.tasks": [EntryPoint("fraction", "fractions:Fraction", "germline.tasks")]}
    monkeypatch.setattr(registry, "entry_points", lambda group: offered.get(group, []))
    assert list_names("tasks", TASKS) == sorted([*TASKS, "fraction"])
    assert resolve("tasks", TASKS, "fraction").__name__ == "Fraction"
    assert list_names("spaces", SPACES) == sorted(SPACES)


def test_a_plugin_cannot_take_the_place_of_a_name_of_ours(monkeypatch):
    offered = [EntryPoint("countdown", "fractions:Fraction", "germline.tasks")]
    monkeypatch.setattr(registry, "entry_points", lambda group: offered)
    assert resolve("tasks", TASKS, "countdown").__name__ == "CountdownTask"
