"""Where to look next: strategies ask for members and tell updates; they never see a tensor."""

from germline.config import CmaBase, StrategyConfig
from germline.protocols import Strategy
from germline.registry import resolve

STRATEGIES = {
    "nes": "germline.strategies.nes:NaturalEvolution",
    "cma": "germline.strategies.cma:CovarianceMatrixAdaptation",
    "sep_cma": "germline.strategies.sep_cma:SeparableCovarianceAdaptation",
}


def make_strategy(
    config: StrategyConfig, *, run_seed: int, generations: int, dimension: int = 0
) -> Strategy:
    """Build the strategy a config section names.

    Args:
        config: which strategy, and its settings.
        run_seed: of the run.
        generations: length of the run, for what is laid out over all of them.
        dimension: how many numbers are searched, for strategies of coordinates.

    Raises:
        GermlineError: the strategy cannot search so many numbers.
    """
    kind = resolve("strategies", STRATEGIES, config.kind)
    last = dimension if isinstance(config, CmaBase) else generations
    strategy: Strategy = kind(config, run_seed, last)
    return strategy
