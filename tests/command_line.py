"""The command line, called in this process."""

from typer.testing import CliRunner, Result

from germline.cli.application import app


def command(*words: object, **environment: str) -> Result:
    """Run `germline` with these words."""
    return CliRunner().invoke(app, [str(word) for word in words], env=environment)


def evaluated(*words: object) -> str:
    """Return what `germline eval` prints with these words."""
    done = command("eval", *words)
    assert done.exit_code == 0, done.output
    return done.stdout
