"""The commands `germline train` and `germline resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import (
    ConfigFile,
    Force,
    Overrides,
    Run,
    generation_of,
)
from germline.cli.output import AsJson, print_stderr

if TYPE_CHECKING:
    from germline.config import Config
    from germline.run import Training

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result, no progress.")]

TRAIN_EXAMPLES = (
    "germline train configs/conciseness.yaml",
    "germline train configs/countdown.yaml strategy.sigma=0.002 seed=3",
    "germline train configs/countdown.yaml --dry-run",
    "germline train configs/arithmetic.yaml --out runs/sums --quiet",
    "germline train configs/countdown.yaml seeds=0..4 --out runs/five-seeds",
    "germline train configs/arithmetic.yaml probes/sums/probe.yaml",
)
RESUME_EXAMPLES = (
    "germline resume runs/sums",
    "germline resume runs/sums generations=200",
    "germline resume runs/sums --from best strategy.learning_rate=0.002",
    "germline resume runs/sums --from 40 --out runs/later batch_size=64",
)


def train(  # noqa: PLR0913 - the options of a command
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory; default: a new one in runs/."),
    ] = None,
    quiet: Quiet = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Test the config with two small generations of nano; text penalties stand in for "
            "scorers that need a model or a service.",
        ),
    ] = False,
    dry: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: print the resolved config, batch shapes, the memory and time to "
            "expect, what would be downloaded and which files would be written. Exits with "
            "status 1 if the run is not expected to fit.",
        ),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a model and write a run directory.

    Ctrl-C finishes the current generation and stops; a second Ctrl-C stops at once. In both cases
    the run can be resumed.

    With seeds=0..4 (or seeds=0,3,7) the config is trained once with each of these run seeds, in one
    folder, and a report over all of them is written.
    """
    from germline.config import load_config
    from germline.config import smoke_config as shrunk

    seeds, others = _seeds(overrides or [])
    settings = load_config(config, others)  # reports errors before torch is imported

    settings = shrunk(settings) if smoke else settings

    if dry:
        _print_dry_run(settings, seeds, out, as_json=as_json)
        return

    from germline.cli.run_loop import run_seeds_with_view, run_with_view

    if seeds is not None:
        from germline.studies.run_seeds import train_seeds

        study = train_seeds(settings, seeds, out)
        if len(study.seeds) == 1:
            print_stderr(
                f"seeds={seeds} is one run seed; several are a range or a list (seeds=0..4, "
                "seeds=0,3,7)"
            )
        run_seeds_with_view(study, quiet=quiet, as_json=as_json)
        return

    def begin() -> "Training":
        from germline.run.lifecycle import begin_run

        return begin_run(settings, out)

    run_with_view(begin, quiet=quiet, as_json=as_json)


def resume(
    path: Run,
    overrides: Overrides = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="GENERATION",
            help="Begin a new run from the weights after this generation; best is the one with "
            "the best held-out score, -1 the start. All settings except model and space may be "
            "changed.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --from: the new run directory; default: a new one in runs/."
        ),
    ] = None,
    quiet: Quiet = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Continue a stopped or killed run, or begin a new run from one of its generations.

    A folder of several run seeds (train seeds=0..4) continues with the unfinished seeds, and with
    all of them if it is given more generations.

    A finished run continues if it is given more generations. The final weights are the same, bit
    for bit, as those of a run that was never interrupted.

    With --from, the run is not changed, and a new run directory is written. It does not depend on
    the old one, because it contains the journal that led to its starting weights. Unless seed=N is
    given, its run seed is a new one, so that it repeats no perturbation and no batch of the old
    run; run.json says the seed, and under `ancestry` the runs that it began from.
    """
    from germline.cli.run_loop import run_seeds_with_view, run_with_view
    from germline.record.seed_study import check_single_run, is_seed_study
    from germline.types import GermlineError

    if out is not None and start is None:
        raise GermlineError(
            f"resume: --out={out} needs --from, because a run is continued in its own directory: "
            "drop it, or give the generation to start from (--from best)"
        )
    if is_seed_study(path):
        if any(override.startswith("seeds=") for override in overrides or []):
            raise GermlineError(
                f"resume: {path} goes on with the seeds it was begun with; to add some, repeat "
                f"its germline train with more seeds and --out {path}, which keeps the seeds "
                "that are trained"
            )
        if start is not None:
            check_single_run(path)
        from germline.studies.run_seeds import SeedStudy

        study = SeedStudy.open(path, overrides or [])
        run_seeds_with_view(study, quiet=quiet, as_json=as_json)
        return

    def begin() -> "Training":
        from germline import run

        generation = generation_of("resume", start, "--from")
        if generation is None:
            return run.resume(path, overrides or [])
        return run.fork(path, generation, overrides or [], out)

    run_with_view(begin, quiet=quiet, as_json=as_json)


def _print_dry_run(config: "Config", seeds: str | None, out: Path | None, *, as_json: bool) -> None:
    from germline.cli.dry_run import print_dry_run

    runs = 1
    if seeds is not None:
        from germline.studies.run_seeds import train_seeds

        study = train_seeds(config, seeds, out)
        config = study.config.model_copy(update={"seed": study.seeds[0]})
        runs, out = len(study.seeds), study.path(study.seeds[0])
    if not print_dry_run(config, out, runs=runs, as_json=as_json):
        raise typer.Exit(1)


def _seeds(overrides: list[str]) -> tuple[str | None, list[str]]:
    """Take `seeds=` out of the overrides."""
    from germline.types import GermlineError

    seeds = [
        override.removeprefix("seeds=") for override in overrides if override.startswith("seeds=")
    ]
    others = [override for override in overrides if not override.startswith("seeds=")]
    if seeds and any(other.startswith("seed=") for other in others):
        raise GermlineError(
            f"seeds={seeds[-1]} names every run seed, so seed= would be ignored: drop one of them"
        )
    return (seeds[-1] if seeds else None), others
