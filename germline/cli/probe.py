"""The command `germline probe`: find a sigma and a learning rate for a config."""

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Overrides
from germline.cli.output import AsJson, print_json, print_stdout, print_table

if TYPE_CHECKING:
    from germline.studies.probe import ProbeAdvice

PROBE_EXAMPLES = (
    "germline probe configs/conciseness.yaml",
    "germline probe configs/arithmetic.yaml generations=200 --out probes/sums",
)


def probe(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder; default: a new folder in probes/."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time limit, in minutes.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Find a sigma and a learning rate for a config.

    Evaluates a few members at sigmas over several decades, and measures where their texts become
    degenerate, where members differ, and where examples agree on the update; then runs short
    trainings. Writes a file of settings that `germline train` takes after the config, and prints
    the command. Only training examples are used.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = out or Path("probes") / f"{settings.task.title}-{stamp}"
    from germline.record.atomic_files import check_writable

    check_writable(folder, folder=True)

    from germline.studies.probe import probe as run_probe
    from germline.studies.probe import write_advice

    def watch(now: str) -> None:
        if not as_json:
            print_stdout(f"... {now}")

    advice = run_probe(settings, minutes=minutes, watch=watch)
    command = ["germline", "probe", str(config), *(overrides or [])]
    file = write_advice(advice, folder, shlex.join(command))
    after = ["germline", "train", str(config), *(overrides or []), str(file)]
    if as_json:
        print_json(advice.values() | {"settings": file, "next": shlex.join(after)})
        return
    _show(advice)
    typer.echo(f"\nfiles: {folder}\nnext:\n  {shlex.join(after)}")


def _show(advice: "ProbeAdvice") -> None:
    from germline.report.text_format import number

    rows = [
        (
            f"{row.sigma:g}",
            f"{row.divergence:.2g}",
            f"{row.garbage:.0%}",
            f"{row.informative:.0%}",
            "" if row.agreement is None else f"{row.agreement:.2f}",
            number(row.reward),
            "the center" if row is advice.center else advice.verdict(row),
        )
        for row in (advice.center, *advice.sigma_probes)
    ]
    typer.echo("")
    columns = ("sigma", "KL", "degenerate", "examples differ", "agreement", "reward", "")
    print_table(columns, rows)
    if advice.trials:
        trials = [("untrained", "", f"{number(advice.untrained_score)} (0)")]
        for trial in advice.trials:
            rate = "" if trial.learning_rate is None else f"{trial.learning_rate:g}"
            scores = ", ".join(f"{number(score)} ({done})" for done, score in trial.scores)
            trials.append((f"{trial.sigma:g}", rate, scores))
        typer.echo("")
        print_table(("sigma", "learning rate", "score (after generations)"), trials)
    for paragraph in (*advice.reasons(), *(f"Note: {note}." for note in advice.notes)):
        print_stdout(f"\n{paragraph}")
    typer.secho("\nrecommended:", bold=True)
    for name, value in advice.overrides["strategy"].items():
        shown = value if isinstance(value, str) else f"{value:g}"
        typer.secho(f"  strategy.{name}={shown}", bold=True)
