"""What plugin authors inherit holds for engines of the house; test_engines looks inside them."""

import pytest

from germline.config import Full, Lora, LowRank, SpaceConfig, Subspace
from germline.optimizers import Adam
from germline.testing import EngineConformance
from tests.tiny_engines import engine

MADE: dict[str, tuple[str, SpaceConfig]] = {
    "toy, full": ("toy", Full()),
    "toy, low rank": ("toy", LowRank()),
    "qwen2, full": ("qwen2", Full()),
    "qwen2, low rank": ("qwen2", LowRank(rank=2)),
    "gpt2, lora": ("gpt2", Lora(rank=2, init_scale_b=0.5)),
    "llama, subspace": ("llama", Subspace(dimension=20)),
}


@pytest.mark.parametrize("name", MADE)
class TestEngines(EngineConformance):
    @pytest.fixture(autouse=True)
    def _of_a_name(self, name):
        self.model, self.space = MADE[name]
        self.sigma = 1.0 if name.endswith("subspace") else 0.1

    def make(self):
        return engine(self.model, self.space, Adam())
