"""Run a command of germline for a study: it is interrupted when the study is killed.

Standard input is a pipe that the process of the study holds open, so it ends with that process,
whatever ended it. A training that is interrupted finishes its generation.
"""

import os
import signal
from threading import Thread

from germline.cli import main


def _interrupt_with_study() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would be held at the end of this process
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    Thread(target=_interrupt_with_study, daemon=True).start()
    main()
