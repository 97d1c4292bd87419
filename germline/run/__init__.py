"""Build the objects that a config names, train with them, and read finished runs.

`train`, `resume` and `fork` return a `Training`; iterating it yields the record of each generation.
`replay`, `export`, `evaluate` and `generate` use a run directory. `build_run_parts` returns the
objects themselves, for a training loop of your own.
"""

from germline.run.build_parts import RunParts, build_run_parts
from germline.run.inference import evaluate, generate
from germline.run.lifecycle import fork, resume, train
from germline.run.task_check import check_task
from germline.run.training import Training
from germline.run.weights import export, replay

__all__ = [
    "RunParts",
    "Training",
    "build_run_parts",
    "check_task",
    "evaluate",
    "export",
    "fork",
    "generate",
    "replay",
    "resume",
    "train",
]
