"""Every recipe says what it needs, computed anew, and fits the hardware it is named after."""

import pytest

from checks.recipes import MACHINES, NOT_RUN, computed, fresh, recipes
from germline.config import load_config
from germline.estimates.popular_model_configs import PUBLISHED

RECIPES = recipes()
USABLE = 0.9
"""Share of a GPU's memory that an estimate may take: the rest is for what is not counted."""


def test_there_are_recipes_for_every_machine_and_all_models_are_described():
    ends = {end for end in MACHINES for path in RECIPES if path.stem.endswith(end)}
    assert ends == set(MACHINES)
    assert {load_config(path).model for path in RECIPES} <= set(PUBLISHED)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_what_it_needs_and_fits_its_hardware(path):
    found = computed(path, load_config(path))
    assert path.read_text(encoding="utf-8") == fresh(path, found)
    assert NOT_RUN in path.read_text(encoding="utf-8")
    assert found.needed("device") <= USABLE * found.machine.memory_bytes


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_sigma_and_learning_rate_of_a_recipe_are_measured(path):
    assert not load_config(path).strategy.changed("sigma", "learning_rate")
