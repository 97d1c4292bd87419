"""How masters are made of a model, as text: for replicas of them in processes elsewhere.

The text is what the config says of it; whoever reads it checks the values as those of any config.
"""

import json

from germline.config import Config, validate_config
from germline.engines.master_weights import Masters, searched_names
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import PretrainedModel, load_pretrained
from germline.optimizers import AscentOptimizer, make_optimizer
from germline.protocols import Space
from germline.spaces import make_space

ELSEWHERE = frozenset(
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
"""Sections that have no part in how masters are made or move; some name files of another host."""


def write_spec(config: Config, *, searched: bool) -> str:
    """Write how the masters of a run are made; not `searched` are those of the model alone."""
    return json.dumps(
        {"searched": searched, **config.model_dump(mode="json", exclude={*ELSEWHERE})}
    )


def masters_from_spec(recipe: str, source: str) -> Masters:
    """Load a model and make masters of it.

    Raises:
        GermlineError: the model cannot be loaded, or the recipe is none for this germline.
    """
    values = json.loads(recipe)
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
    """Make masters of a model: the same here and in a replica elsewhere.

    Searched parameters become fp32, one after another; the others stay as they are stored.
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
