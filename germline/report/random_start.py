"""Say of a run that its score before training is not that of the base model.

A LoRA adapter whose B is 0 starts at the base model, but then A has no effect on the fitness of the
first generation. `space.init_scale_b` is 0.01 by default, and both matrices are drawn from the run
seed. (Measured on 188 examples of arithmetic with the nano model: 0.255 for the base model and with
B = 0, 0.266 and 0.239 with B of seeds 0 and 1.)
"""

from germline.record import RunDirectory
from germline.types import GermlineError


def random_start(run: RunDirectory) -> str:
    """Return the sentence about the score before training; empty where the start is not random.

    The weights before the training of a fork are those of another run.
    """
    space = run.config.space
    if not space.starts_at_random or _is_fork(run):
        return ""
    return (
        "The score before training of a run with space=lora is that of the base model with a "
        "random adapter, which depends on the run seed; with space.init_scale_b=0 it is that of "
        "the base model."
    )


def _is_fork(run: RunDirectory) -> bool:
    try:
        return bool(run.ancestors)
    except GermlineError:  # the run that it began from is not there
        return True
