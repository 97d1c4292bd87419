"""The command line: it turns arguments into a config and calls one command.

Each command imports its dependencies when it runs, so that `--help` and errors in options appear at
once, without the time to load torch.
"""

import sys


def main() -> None:
    """Run the `germline` command."""
    try:
        from germline.cli.application import app

        app()
    except KeyboardInterrupt:  # while modules are imported: a command handles its own
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
