"""What every space must do, whichever it is: the shipped tests over the table of spaces."""

import numpy as np
import pytest
import torch

from germline.config import Full, Lora, LowRank, Singular, SpaceConfig, Subspace
from germline.spaces import make_space
from germline.spaces.base import BaseModel
from germline.testing import SpaceConformance
from germline.testing.space_conformance import LAYER, TWIN, member_of_direction
from tests.tiny_engines import drawn

SETTINGS: dict[str, SpaceConfig] = {
    "full": Full(),
    "rank 1": LowRank(rank=1),
    "rank 2": LowRank(rank=2),
    "rank 7": LowRank(rank=7),
    "lora": Lora(rank=64),
    "subspace": Subspace(),
    "singular": Singular(),
}


@pytest.mark.parametrize("name", SETTINGS)
class TestSpaces(SpaceConformance):
    @pytest.fixture(autouse=True)
    def _of_a_name(self, name):
        self.section = SETTINGS[name]

    def make(self):
        return make_space(self.section)

    def test_the_noise_is_what_its_definition_says(self):
        for index in (0, 5):
            found = self.make().noise(member_of_direction(index), LAYER).double().numpy()
            expected = drawn(member_of_direction(index), LAYER, self.section)
            assert found.shape == LAYER.shape
            np.testing.assert_allclose(found, expected, atol=1e-5)

    def test_selecting_keeps_the_order_given(self):
        space = self.make()
        if not space.searches_weights:
            weights = {layer.name: torch.ones(layer.shape) for layer in (LAYER, TWIN)}
            begun = [*space.begin(BaseModel("", (LAYER, TWIN), str, weights))][::-1]
            assert space.select((TWIN, LAYER, *begun)) == tuple(begun)
        else:
            assert space.select((TWIN, LAYER)) == (TWIN, LAYER)
