"""Starting weights that are not the base model's: the updates of earlier runs, replayed.

Every ancestor updated theta by its own rules (optimizer, unit of sigma, strategy), so each one's
journal is replayed by masters made as that run made them, which share their tensors with those of
the engine. Every digest on the way is verified. What an ancestor's optimizer remembered stays
behind: a run starts with theta alone.

What theta is made of (an adapter that is drawn, the directions of a subspace) is of the seed of the
first ancestor, and units such as mean |W| are measured on the base model, for all of them.
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
    """Bring an engine, freshly loaded, to the weights its ancestors led to.

    Raises:
        GermlineError: a digest differs: the base model or a journal is another one.
    """
    if not ancestors:
        return
    weights = _masters(engine.weights)
    # All of them before the first update: their units are those of the base model.
    seed = space_seed(ancestors[0].config, ancestors)
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


def space_seed(config: Config, ancestors: Sequence[Ancestor]) -> int:
    """Return the seed from which a space draws what theta is made of."""
    return ancestors[0].config.seed if ancestors else config.seed


def _masters(weights: MasterWeights) -> Masters:
    if isinstance(weights, Masters):
        return weights
    raise GermlineError(
        f"a fork needs an engine whose weights are germline.engines.master_weights.Masters, found "
        f"{type(weights).__name__}"
    )


def _made_as(config: Config, seed: int, weights: Masters) -> Masters:
    """Make the masters of another run on the tensors of these."""
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
    """Let later masters start from the theta of these; what they decay to is that as well."""
    for info in masters.searched:
        if later.tensors[info.name] is not masters.tensors[info.name]:
            later.tensors[info.name].copy_(masters.tensors[info.name])
    later.optimizer.begin({info.name: later.tensors[info.name] for info in later.searched})
