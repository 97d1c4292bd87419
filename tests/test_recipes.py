"""Every recipe fits the memory of the hardware it is named after, and measures sigma and rate."""

import math
import re

import pytest

from germline.config import load_config
from germline.config.config_files import preset_configs
from germline.estimates.estimate import estimate
from germline.estimates.machine import Machine
from germline.estimates.model_shape import shape_of
from germline.estimates.workload import text_lengths
from germline.tasks import make_task
from tests.published_models import published

RECIPES = {name: path for name, path in preset_configs().items() if name.startswith("recipes/")}
MEMORY_GB = {"8gb": 8.0, "2xt4": 15.8, "24gb": 24.0, "80gb": 80.0}
USABLE = 0.9
"""Share of a GPU's memory that an estimate may take: the rest is for what is not counted."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_its_hardware_and_measures_sigma_and_learning_rate(name):
    config = load_config(RECIPES[name])
    assert not config.strategy.changed("sigma", "learning_rate")
    gpu = re.search(r"8gb$|2xt4$|24gb$|80gb", name)
    assert gpu
    machine = Machine(gpu[0], True, USABLE * MEMORY_GB[gpu[0]] * 1e9, math.inf)
    texts = text_lengths(config, make_task(config.task))
    assert estimate(config, shape_of(published(config.model)), texts, machine).fits
