"""Config to objects to run directory: the only place where names become objects.

`train`, `resume` and `fork` return a `Training`: iterate it, look at each record, stop it.
`replay`, `export`, `evaluate` and `generate` read what a run left; `assemble` gives the objects
themselves, for the ask/tell level below.
"""

from germline.run.assembly import Parts, assemble
from germline.run.checking import check_task
from germline.run.forks import fork
from germline.run.reading import evaluate, export, generate, replay
from germline.run.training import Training, resume, train

__all__ = [
    "Parts",
    "Training",
    "assemble",
    "check_task",
    "evaluate",
    "export",
    "fork",
    "generate",
    "replay",
    "resume",
    "train",
]
