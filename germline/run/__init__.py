"""Config to objects to run directory: the only place where names become objects.

`train`, `resume` and `fork` return a `Training`: iterate it, look at each record, stop it.
`replay`, `export`, `evaluate` and `generate` read what a run left; `build_run_parts` gives the
objects themselves, for loops of your own.
"""

from germline.run.build_parts import RunParts, build_run_parts
from germline.run.export_weights import export, replay
from germline.run.fork_run import fork
from germline.run.inference import evaluate, generate
from germline.run.task_check import check_task
from germline.run.train_run import Training, resume, train

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
