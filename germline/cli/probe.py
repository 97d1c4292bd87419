"""The verb that answers the first question, which sigma and which learning rate."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import ConfigFile, Overrides

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
        typer.Option(metavar="DIR", help="Where files go; default: a new folder in probes/."),
    ] = None,
    minutes: Annotated[float, typer.Option(help="The most it may take.")] = 3.0,
    seed: Annotated[int, typer.Option(help="Seed of the probe's own noise.")] = 0,
) -> None:
    """Find a sigma and a learning rate for a config.

    Tries sigmas over decades with a few members, to see where texts stay sane, where members
    differ and where examples agree on the way; then short trainings. Writes a file of settings
    that `germline train` takes after the config, and prints the command. Only training examples
    are played.
    """
    from germline.config import load_config

    settings = load_config(config, overrides or [])
    folder = out or _new_folder(settings.task.title)
    from germline.record.atomic_files import check_writable

    check_writable(folder, folder=True)

    from germline.studies import probe_advice as advised
    from germline.studies.probe import probe as look

    found = look(settings, minutes=minutes, seed=seed, watch=lambda now: typer.echo(f"... {now}"))
    typed = ["germline", "probe", str(config), *(overrides or [])]
    file = advised.write_advice(found, folder, shlex.join(typed))
    _show(found)
    after = ["germline", "train", str(config), *(overrides or []), str(file)]
    typer.echo(f"\nfiles: {folder}\nnext:\n  {shlex.join(after)}")


def _new_folder(task: str) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return Path("probes") / f"{task}-{stamp}"


def _show(found: "ProbeAdvice") -> None:
    from germline.cli import tables

    typer.echo("")
    columns = ("sigma", "KL", "garbage", "examples that tell", "agreement", "reward", "")
    tables.print_table(columns, list(_probe_sigmas(found)))
    if found.trials:
        typer.echo("")
        tables.print_table(
            ("sigma", "learning rate", "score after generations"), list(_trials(found))
        )
    for paragraph in (*found.reasons(), *(f"Note: {note}." for note in found.notes)):
        typer.echo(f"\n{paragraph}")
    typer.secho("\nrecommended:", bold=True)
    for name, value in found.overrides["strategy"].items():
        shown = value if isinstance(value, str) else f"{value:g}"
        typer.secho(f"  strategy.{name}={shown}", bold=True)


def _probe_sigmas(found: "ProbeAdvice") -> Iterator[Sequence[str]]:
    for one in (found.center, *found.sigma_probes):
        told = "" if one.agreement is None else f"{one.agreement:.2f}"
        verdict = "the start" if one is found.center else found.verdict(one)
        yield (
            f"{one.sigma:g}",
            f"{one.divergence:.2g}",
            f"{one.garbage:.0%}",
            f"{one.informative:.0%}",
            told,
            f"{one.reward:.3g}",
            verdict,
        )


def _trials(found: "ProbeAdvice") -> Iterator[Sequence[str]]:
    for one in found.trials:
        rate = "" if one.learning_rate is None else f"{one.learning_rate:g}"
        scores = ", ".join(f"{score:.3g} ({done})" for done, score in one.scores)
        yield f"{one.sigma:g}", rate, scores
