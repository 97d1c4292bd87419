"""The masters of an engine whose model an inference engine serves, and those of its workers."""

from germline.config import Config
from germline.engines.master_weights import Masters, searched_names
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import PretrainedModel, load_pretrained
from germline.optimizers import AscentOptimizer, make_optimizer
from germline.protocols import Space
from germline.spaces import make_space


def masters_of_config(config: Config, source: str, *, searched: bool) -> Masters:
    """Load a model and build the masters of a run.

    Args:
        config: of the run.
        source: folder or Hugging Face id of the model.
        searched: whether the run searches a space; otherwise the masters are the model's weights.

    Raises:
        GermlineError: the model cannot be loaded.
    """
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
