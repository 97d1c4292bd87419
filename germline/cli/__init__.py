"""The command line: it turns arguments into a config and calls one command.

There is one small file per command. Each command imports its dependencies when it runs, so that
`--help` and errors in options appear at once, without the time to load torch.
"""

import errno
import os
import sys

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors with which standard output cannot be written; those of other files are explained."""


def main() -> None:
    """Run the `germline` command."""
    try:
        from germline.cli.application import app

        app()
    except KeyboardInterrupt:  # while modules are imported: a command handles its own
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename:
            raise
        # What is left in the buffer of stdout goes nowhere, or the exit fails once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"germline: standard output cannot be written: {error.strerror}")
