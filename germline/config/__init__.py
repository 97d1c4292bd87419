"""Settings: the sections of a config, and `load_config`, which reads YAML and overrides.

A config is YAML (or a mapping), plus dotted overrides such as `strategy.sigma=0.002`. The resolved
config is written to the run directory, so a run does not depend on defaults of later versions.
"""

from germline.config.base import KindOf, KindSection, Section
from germline.config.cma import Cma, CmaBase, SepCma
from germline.config.engines import EngineBase, EngineConfig, InProcess, Toy
from germline.config.environment_tasks import (
    Calculator,
    Environment,
    EpisodeSettings,
    GuessNumber,
    Verifiers,
    Wordle,
)
from germline.config.fleets import FleetConfig, Local, MicrobatchSettings, Ray
from germline.config.loader import load_config, smoke_config, validate_config
from germline.config.math_tasks import Gsm8k, Math
from germline.config.methods import (
    EsSampleGradientDescent,
    EvolutionStrategy,
    MethodConfig,
    RandOpt,
    ZerothOrderGrpo,
)
from germline.config.optimizers import Adam, OptimizerBase, OptimizerConfig, Sgd
from germline.config.prompt_search import PromptSearch
from germline.config.run_config import (
    Config,
    Graders,
    HeldOut,
    Recording,
)
from germline.config.safe_alignment import SafeAlignment
from germline.config.schedules import (
    Adaptive,
    AutoLearningRate,
    AutoSigma,
    CosineSchedule,
    LinearSchedule,
    NaturalGradientSigma,
    PlateauSchedule,
    Scheduled,
    SuccessRateSigma,
)
from germline.config.sglang import Sglang
from germline.config.shaping import (
    CenteredRanks,
    LogRank,
    PerExample,
    Raw,
    ShapingBase,
    ShapingConfig,
    ZScore,
)
from germline.config.spaces import Full, Lora, LowRank, Singular, SpaceBase, SpaceConfig, Subspace
from germline.config.strategies import (
    GrowSigmaOnZeroSignal,
    Nes,
    RunningMeanBaseline,
    SkipZeroSignal,
    StrategyBase,
    StrategyConfig,
)
from germline.config.tasks import (
    Arithmetic,
    Conciseness,
    Countdown,
    CustomTask,
    Dataset,
    Jsonl,
    Multiplication,
    PythonFile,
    Rows,
    TaskBase,
    TaskConfig,
)
from germline.config.vllm import Vllm

__all__ = [
    "Adam",
    "Adaptive",
    "Arithmetic",
    "AutoLearningRate",
    "AutoSigma",
    "Calculator",
    "CenteredRanks",
    "Cma",
    "CmaBase",
    "Conciseness",
    "Config",
    "CosineSchedule",
    "Countdown",
    "CustomTask",
    "Dataset",
    "EngineBase",
    "EngineConfig",
    "Environment",
    "EpisodeSettings",
    "EsSampleGradientDescent",
    "EvolutionStrategy",
    "FleetConfig",
    "Full",
    "Graders",
    "GrowSigmaOnZeroSignal",
    "Gsm8k",
    "GuessNumber",
    "HeldOut",
    "InProcess",
    "Jsonl",
    "KindOf",
    "KindSection",
    "LinearSchedule",
    "Local",
    "LogRank",
    "Lora",
    "LowRank",
    "Math",
    "MethodConfig",
    "MicrobatchSettings",
    "Multiplication",
    "NaturalGradientSigma",
    "Nes",
    "OptimizerBase",
    "OptimizerConfig",
    "PerExample",
    "PlateauSchedule",
    "PromptSearch",
    "PythonFile",
    "RandOpt",
    "Raw",
    "Ray",
    "Recording",
    "Rows",
    "RunningMeanBaseline",
    "SafeAlignment",
    "Scheduled",
    "Section",
    "SepCma",
    "Sgd",
    "Sglang",
    "ShapingBase",
    "ShapingConfig",
    "Singular",
    "SkipZeroSignal",
    "SpaceBase",
    "SpaceConfig",
    "StrategyBase",
    "StrategyConfig",
    "Subspace",
    "SuccessRateSigma",
    "TaskBase",
    "TaskConfig",
    "Toy",
    "Verifiers",
    "Vllm",
    "Wordle",
    "ZScore",
    "ZerothOrderGrpo",
    "load_config",
    "smoke_config",
    "validate_config",
]
