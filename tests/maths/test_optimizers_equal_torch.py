"""SGD, momentum, Adam and weight decay take the steps of torch.optim in float64."""

from typing import Any

import pytest
import torch

from germline.config import Nes
from germline.optimizers import make_optimizer

RATE = 0.01
KINDS: dict[str, Any] = {
    "sgd": ({"kind": "sgd"}, torch.optim.SGD, {}),
    "momentum": ({"kind": "sgd", "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "adam": ({"kind": "adam", "beta1": 0.5}, torch.optim.Adam, {"betas": (0.5, 0.999)}),
    "decay": ({"kind": "adam", "weight_decay": 2}, torch.optim.AdamW, {"weight_decay": 2}),
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("kind", KINDS)
def test_thirty_steps_are_those_of_torch(kind, scale):
    optimizer, theirs, settings = KINDS[kind]
    section = Nes.model_validate({"learning_rate": RATE, "optimizer": optimizer})
    ours = make_optimizer(section.optimizer)
    random = torch.Generator().manual_seed(0)
    master = torch.randn((37, 11), generator=random) * min(scale, 1.0) * 1e-3
    start = master.double()
    expected = torch.nn.Parameter(start.clone())
    torch_optimizer = theirs([expected], lr=RATE, maximize=True, **{"weight_decay": 0, **settings})
    ours.begin({"w": master})
    for step in range(30):
        gradient = scale * torch.randn(master.shape, generator=random)
        ours.step("w", master, gradient, RATE, step)
        expected.grad = gradient.double()
        torch_optimizer.step()
    moved, wanted = master.double() - start, expected.detach() - start
    assert torch.linalg.norm(moved - wanted) < 2e-6 * torch.linalg.norm(wanted)
