"""Run a command of germline for a study: it is interrupted when the study is killed.

Standard input is a pipe that the process of the study holds open, so it ends with that process,
whatever ended it. The signal is SIGTERM: a training finishes its generation, also after Ctrl-C.
"""

import os
import signal
from threading import Thread

from germline.cli import main


def _interrupt_at_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    study = os.dup(0)  # not inherited by graders and engines, whose standard input is empty
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    Thread(target=_interrupt_at_end, args=(study,), daemon=True).start()
    main()
