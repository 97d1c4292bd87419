"""A Python process of its own, as of a user's program."""

import os
import subprocess
import sys

from tests.hang_limit import HANG_S


def python(*words, cwd=None, given=None, **environment):
    """Start Python with words of a command and return what it did, which must be without error."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=os.environ | environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done
