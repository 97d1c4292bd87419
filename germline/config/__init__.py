"""Settings: `settings` says what there is, `reading` turns YAML and overrides into a frozen Config.

A config is YAML (or a mapping), plus dotted overrides such as `strategy.sigma=0.002`. The resolved
config is written to the run directory, so a run never depends on a default that moved.
"""

from germline.config.choices import Choices
from germline.config.cma import Cma, CoordinateStrategy, SepCma
from germline.config.engines import EngineConfig, InProcess, Toy
from germline.config.fleets import Cell, FleetConfig, Local, Ray
from germline.config.methods import Es, EsSampleGd, MethodConfig, RandOpt
from germline.config.optimizers import Adam, OptimizerConfig, Sgd
from germline.config.reading import load_config, smoke, validated
from germline.config.schedules import (
    Adaptive,
    AutoRate,
    AutoSigma,
    Cosine,
    Linear,
    Natural,
    Plateau,
    Scheduled,
    Success,
)
from germline.config.sections import Section
from germline.config.settings import (
    KINDS,
    Config,
    Graders,
    HeldOut,
    Recording,
)
from germline.config.sglang import Sglang
from germline.config.shaping import (
    CentredRanks,
    LogRank,
    PerExample,
    Raw,
    ShapingBase,
    ShapingConfig,
    ZScore,
)
from germline.config.spaces import Full, Lora, LowRank, Singular, SpaceBase, SpaceConfig, Subspace
from germline.config.strategies import Grow, Nes, RunningMean, Skip, StrategyConfig
from germline.config.tasks import (
    Arithmetic,
    Conciseness,
    Countdown,
    Jsonl,
    Multiplication,
    OwnTask,
    Python,
    TaskBase,
    TaskConfig,
)
from germline.config.vllm import Vllm

__all__ = [
    "KINDS",
    "Adam",
    "Adaptive",
    "Arithmetic",
    "AutoRate",
    "AutoSigma",
    "Cell",
    "CentredRanks",
    "Choices",
    "Cma",
    "Conciseness",
    "Config",
    "CoordinateStrategy",
    "Cosine",
    "Countdown",
    "EngineConfig",
    "Es",
    "EsSampleGd",
    "FleetConfig",
    "Full",
    "Graders",
    "Grow",
    "HeldOut",
    "InProcess",
    "Jsonl",
    "Linear",
    "Local",
    "LogRank",
    "Lora",
    "LowRank",
    "MethodConfig",
    "Multiplication",
    "Natural",
    "Nes",
    "OptimizerConfig",
    "OwnTask",
    "PerExample",
    "Plateau",
    "Python",
    "RandOpt",
    "Raw",
    "Ray",
    "Recording",
    "RunningMean",
    "Scheduled",
    "Section",
    "SepCma",
    "Sgd",
    "Sglang",
    "ShapingBase",
    "ShapingConfig",
    "Singular",
    "Skip",
    "SpaceBase",
    "SpaceConfig",
    "StrategyConfig",
    "Subspace",
    "Success",
    "TaskBase",
    "TaskConfig",
    "Toy",
    "Vllm",
    "ZScore",
    "load_config",
    "smoke",
    "validated",
]
