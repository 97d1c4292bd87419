"""Fine-tune language models with evolution strategies: no backpropagation, bit-exact replay.

>>> import germline
>>> germline.load_config({"task": "countdown"}).task.kind
'countdown'

The public names below are what a program may rely on (`tests/test_public.py` pins them); they load
what they need on first use, so `import germline` stays light.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from germline.config import Config as Config
    from germline.config import load_config as load_config
    from germline.report.findings import findings as findings
    from germline.report.html_page import write_report as write_report
    from germline.run import Training as Training
    from germline.run import build_run_parts as build_run_parts
    from germline.run import check_task as check_task
    from germline.run import evaluate as evaluate
    from germline.run import export as export
    from germline.run import fork as fork
    from germline.run import generate as generate
    from germline.run import replay as replay
    from germline.run import resume as resume
    from germline.run import train as train
    from germline.studies.run_seeds import train_seeds as train_seeds
    from germline.studies.sweep_runner import sweep as sweep
    from germline.types import GermlineError as GermlineError

_HOMES = {
    "Config": "germline.config",
    "load_config": "germline.config",
    "GermlineError": "germline.types",
    "Training": "germline.run",
    "build_run_parts": "germline.run",
    "check_task": "germline.run",
    "train": "germline.run",
    "resume": "germline.run",
    "fork": "germline.run",
    "replay": "germline.run",
    "export": "germline.run",
    "evaluate": "germline.run",
    "generate": "germline.run",
    "train_seeds": "germline.studies.run_seeds",
    "sweep": "germline.studies.sweep_runner",
    "findings": "germline.report.findings",
    "write_report": "germline.report.html_page",
}

__all__ = sorted(_HOMES)

# libgomp, which PyTorch uses on Linux, reads these variables when it is loaded. Its threads spin up
# to 300,000 times before they sleep: beside other programs they hold the core that the thread needs
# for which they wait. No bit of a result depends on it (docs/results.md, "Shared cores").
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "10000"


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes 30 ms, so only on use

        return version("germline")
    if name not in _HOMES:
        raise AttributeError(f"module 'germline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
