"""The engine `vllm`: masters here, and vLLM in this process or behind a URL."""

import torch

from germline.config import Config, Vllm
from germline.engines.dtypes import serving_dtype
from germline.engines.pretrained import PretrainedModel
from germline.engines.served.engine import ServedEngine
from germline.engines.served.masters_spec import write_spec
from germline.engines.vllm.in_process import InProcessTransport
from germline.engines.vllm.over_http import HttpTransport
from germline.engines.vllm.server import Transport, VllmServer
from germline.optimizers import AscentOptimizer
from germline.protocols import Space


def make_engine(
    config: Config, pretrained: PretrainedModel, space: Space | None, optimizer: AscentOptimizer
) -> ServedEngine:
    """Start or find vLLM, with its part of a config.

    Raises:
        GermlineError: it is not installed, cannot be started or reached, or serves another model.
    """
    section = config.engine
    assert isinstance(section, Vllm)
    dtype = serving_dtype(section.dtype, pretrained.stored_dtype, on_gpu=torch.cuda.is_available())
    recipe = write_spec(config, searched=space is not None)
    at = HttpTransport if section.base_url else InProcessTransport
    transport: Transport = at(section, pretrained, dtype, recipe)
    return ServedEngine(
        pretrained, space, optimizer, config.search.unit, VllmServer(transport), dtype
    )
