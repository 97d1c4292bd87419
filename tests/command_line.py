"""The command line, called in this process."""

from typer.testing import CliRunner, Result

from germline.cli.application import app


def command(*words: object, **environment: str) -> Result:
    """Run `germline` with these words."""
    return CliRunner().invoke(app, [str(word) for word in words], env=environment)
