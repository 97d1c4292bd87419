"""Starting weights of a fork: the updates of its ancestors, replayed on the base model.

Every ancestor updated theta with its own optimizer, unit of sigma and strategy. So its journal is
replayed by masters with its settings, which share their tensors with the masters of the engine.
Every digest is verified. The state of an ancestor's optimizer is dropped: a run starts with theta
alone.

The seed of the first ancestor draws the parts of theta (the adapter, the directions of a subspace),
and units such as mean |W| are measured on the base model, for all ancestors.
"""

from collections.abc import Sequence

from germline.checkpoint import restore
from germline.config import Config
from germline.engines.master_weights import Masters
from germline.optimizers import make_optimizer
from germline.protocols import Engine, MasterWeights
from germline.record.ancestry import Ancestor
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.types import GermlineError


def apply_ancestors(engine: Engine, ancestors: Sequence[Ancestor]) -> None:
    """Update a freshly loaded engine to the weights that the ancestors led to.

    Raises:
        GermlineError: a digest differs: the base model or a journal has changed.
    """
    weights = _masters(engine.weights)
    # All masters are made before the first update: their units are those of the base model.
    seed = ancestors[0].config.seed
    line = [_made_as(one.config, seed, weights) for one in ancestors]
    for ancestor, masters in zip(ancestors, line, strict=True):
        strategy = make_strategy(
            ancestor.config.strategy,
            run_seed=ancestor.config.seed,
            generations=ancestor.config.generations,
            dimension=masters.dimension,
        )
        restore(
            masters,
            ancestor.entries,
            None,
            ancestor.base_digest,
            ancestor.generation,
            strategy,
        )
        for later in (*line, weights):
            _take_over(masters, later)
    engine.refresh()


def _masters(weights: MasterWeights) -> Masters:
    if isinstance(weights, Masters):
        return weights
    raise GermlineError(
        f"a fork needs an engine whose weights are germline.engines.master_weights.Masters, found "
        f"{type(weights).__name__}"
    )


def _made_as(config: Config, seed: int, weights: Masters) -> Masters:
    """Make masters with the settings of another run that share the tensors of these."""
    base = weights.base.tensors
    return Masters(
        {info.name: weights.tensors[info.name] for info in base},
        base,
        make_space(config.space, seed),
        make_optimizer(config.optimizer),
        config.search.unit,
        weights.base.source,
    )


def _take_over(masters: Masters, later: Masters) -> None:
    """Let later masters start from the theta of these; it is also the anchor of weight decay."""
    for info in masters.searched:
        if later.tensors[info.name] is not masters.tensors[info.name]:
            later.tensors[info.name].copy_(masters.tensors[info.name])
    later.optimizer.begin({info.name: later.tensors[info.name] for info in later.searched})
