"""The engine `vllm`: masters here, and vLLM in this process or behind a URL."""

import torch

from germline.config import Config, Vllm
from germline.engines.dtypes import serving_dtype
from germline.engines.pretrained import load_pretrained
from germline.engines.served.engine import ServedEngine
from germline.engines.served.masters_only import make_masters_only_engine
from germline.engines.served.masters_spec import write_spec
from germline.engines.vllm.in_process import InProcessTransport
from germline.engines.vllm.over_http import HttpTransport
from germline.engines.vllm.server import Transport, VllmServer
from germline.optimizers import AscentOptimizer
from germline.protocols import Space


class VllmEngine(ServedEngine):
    """Masters in this process, and vLLM as the server of their copy."""

    @classmethod
    def from_config(
        cls,
        config: Config,
        source: str,
        space: Space | None,
        optimizer: AscentOptimizer,
        *,
        generates: bool = True,
    ) -> ServedEngine:
        """Construct it from the config of a run: start vLLM, or connect to its server.

        Raises:
            GermlineError: vLLM is not installed, cannot be started or reached, or serves another
                model.
        """
        section = config.engine
        assert isinstance(section, Vllm)
        pretrained = load_pretrained(source)
        if not generates:
            return make_masters_only_engine(config, pretrained, space, optimizer)
        on_gpu = torch.cuda.is_available()
        dtype = serving_dtype(section.dtype, pretrained.stored_dtype, on_gpu=on_gpu)
        spec = write_spec(config, searched=space is not None)
        at = HttpTransport if section.base_url else InProcessTransport
        transport: Transport = at(section, pretrained, dtype, spec)
        unit = config.search.unit
        return cls(pretrained, space, optimizer, unit, VllmServer(transport), dtype)
