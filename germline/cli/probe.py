"""The command `germline probe`: find a sigma and a learning rate for a config."""

import shlex
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Overrides
from germline.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from germline.studies.probe_advice import ProbeAdvice

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
    minutes: Annotated[float, typer.Option(min=0.1, help="Time limit, in minutes.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Find a sigma and a learning rate for a config.

    Evaluates a few members at growing sigmas, from that of sigma=auto on, and measures where their
    texts become degenerate, where members differ, and where examples agree on the update; then runs
    short trainings. Writes a file of settings that `germline train` takes after the config, and
    prints the command. With zo_grpo, method.relative_step takes the place of the learning rate.
    Only training examples are used. Ctrl-C ends the measurements: the advice follows from those
    that were made, which are kept in probe.json.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = out or Path("probes") / f"{settings.task.title}-{stamp}"
    from germline.record.atomic_files import check_writable, explain_write_errors, write_json

    check_writable(folder, folder=True)
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)

    from germline.studies.probe import probe as run_probe
    from germline.studies.probe_advice import write_advice

    def watch(now: str) -> None:
        if not as_json:
            typer.echo(f"... {now}")

    keep = partial(write_json, folder / "probe.json")
    advice = run_probe(settings, minutes=minutes, watch=watch, keep=keep)
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
    measured = ("sigma", "KL", "degenerate", "examples differ", "agreement", "reward", "")
    print_table(measured, rows)
    if advice.trials:
        names = list(advice.trials[0][0])
        trials = [("untrained", *[""] * (len(names) - 1), number(advice.untrained_score))]
        for settings, score in advice.trials:
            trials.append((*(f"{value:g}" for value in settings.values()), number(score)))
        typer.echo("")
        columns = [name.replace("_", " ") for name in names]
        print_table((*columns, "score"), trials)
    for note in advice.notes:
        typer.echo(f"\nNote: {note}.")
    typer.secho("\nrecommended:", bold=True)
    for section, recommended in advice.overrides.items():
        for name, value in recommended.items():
            shown = value if isinstance(value, str) else f"{value:g}"
            typer.secho(f"  {section}.{name}={shown}", bold=True)
