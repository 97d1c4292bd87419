"""The engine `vllm`: masters here, and vLLM in this process or behind a URL."""

import torch

from germline.config import Config, Vllm
from germline.engines.dtypes import serving_dtype
from germline.engines.pretrained import Pretrained
from germline.engines.served.engine import ServedEngine
from germline.engines.served.recipe import write_recipe
from germline.engines.vllm.in_process import InProcessDoor
from germline.engines.vllm.over_http import HttpDoor
from germline.engines.vllm.server import Door, VllmServer
from germline.optimizers import Optimizer
from germline.protocols import Space


def make(
    config: Config, pretrained: Pretrained, space: Space | None, optimizer: Optimizer
) -> ServedEngine:
    """Start or find vLLM, with its part of a config.

    Raises:
        GermlineError: it is not installed, cannot be started or reached, or serves another model.
    """
    section = config.engine
    assert isinstance(section, Vllm)
    dtype = serving_dtype(section.dtype, pretrained.stored_dtype, on_gpu=torch.cuda.is_available())
    recipe = write_recipe(config, searched=space is not None)
    at = HttpDoor if section.base_url else InProcessDoor
    door: Door = at(section, pretrained, dtype, recipe)
    return ServedEngine(pretrained, space, optimizer, config.search.unit, VllmServer(door), dtype)
