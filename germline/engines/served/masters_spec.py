"""Builds masters of a model, and writes the settings from which another process builds the same.

The spec is JSON: the sections of the config that masters depend on. The process that reads the spec
validates the values as in any config.
"""

import json

from germline.config import Config, validate_config
from germline.engines.master_weights import Masters, searched_names
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import PretrainedModel, load_pretrained
from germline.optimizers import AscentOptimizer, make_optimizer
from germline.protocols import Space
from germline.spaces import make_space

UNRELATED = frozenset(
    {
        "model",
        "task",
        "prompt_search",
        "engine",
        "fleet",
        "microbatch",
        "graders",
        "held_out",
        "record",
    }
)
"""Sections that masters and updates do not depend on; some name files of this machine."""


def write_spec(config: Config, *, searched: bool) -> str:
    """Write the spec of a run's masters.

    Args:
        config: of the run.
        searched: whether the run searches a space; otherwise the masters are the model's weights.
    """
    return json.dumps(
        {"searched": searched, **config.model_dump(mode="json", exclude={*UNRELATED})}
    )


def masters_from_spec(spec: str, source: str) -> Masters:
    """Load a model and build the masters of a spec.

    Raises:
        GermlineError: the model cannot be loaded, or this version cannot read the spec.
    """
    values = json.loads(spec)
    searched = values.pop("searched")
    config = validate_config(values)
    return make_masters(
        load_pretrained(source),
        make_space(config.space, config.seed) if searched else None,
        make_optimizer(config.optimizer),
        config.search.unit,
    )


def make_masters(
    pretrained: PretrainedModel, space: Space | None, optimizer: AscentOptimizer, sigma_unit: str
) -> Masters:
    """Build masters of a model: bit-identical in every process.

    Searched parameters become fp32, one after another; the others keep their stored dtype.
    """
    model = pretrained.model
    infos = list_tensors(model)
    searched = searched_names(space, infos, pretrained.source)
    values = {}
    for name, parameter in model.named_parameters():
        if name in searched:
            parameter.data = parameter.data.float()
        values[name] = parameter.detach()
    return Masters(values, infos, space, optimizer, sigma_unit, pretrained.source)
