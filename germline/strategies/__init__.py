"""Where to look next: strategies ask for seeds and tell coefficients; they never see a tensor."""

from germline.config import Nes
from germline.protocols import Strategy
from germline.registry import resolve

STRATEGIES = {"nes": "germline.strategies.nes:NaturalEvolution"}


def make_strategy(config: Nes, *, run_seed: int, generations: int) -> Strategy:
    """Build the strategy a config section names, for a run of so many generations."""
    strategy: Strategy = resolve("strategies", STRATEGIES, config.kind)(
        config, run_seed, generations
    )
    return strategy
