"""The command line: argv to a config, a config to one verb.

One small file per group of verbs; each verb imports what it needs when it runs, so that `--help`
and a mistyped option answer at once instead of after loading torch.
"""


def main() -> None:
    """Run the `germline` command."""
    from germline.cli.application import app

    app()
