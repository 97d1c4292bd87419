"""The verbs that train: `germline train` and `germline resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from germline.cli.arguments import ConfigFile, Overrides, Run

if TYPE_CHECKING:
    from germline.run import Training

SEEDS_FILE = "seeds.json"
"""Marks a folder of several run seeds; germline.studies.run_seeds, which writes it, needs torch."""

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result only, nothing while training.")
]

TRAIN_EXAMPLES = (
    "germline train configs/conciseness.yaml",
    "germline train configs/countdown.yaml strategy.sigma=0.002 seed=3",
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


def train(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The run directory; default: a new one in runs/."),
    ] = None,
    quiet: Quiet = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Two small generations of the nano model: does it run?")
    ] = False,
) -> None:
    """Train a model and write a run directory.

    Ctrl-C finishes the generation at hand and stops; a second one stops at once. Either way the run
    can be resumed.

    With seeds=0..4 (or seeds=0,3,7) the config is trained once with each of these run seeds, in one
    folder, and a report over all of them is written.
    """
    from germline.config import load_config
    from germline.config import smoke_config as shrunk

    seeds, others = _seeds(overrides or [])
    settings = load_config(config, others)  # complains before torch is imported

    settings = shrunk(settings) if smoke else settings

    from germline.cli.run_loop import run_seeds_with_view, run_with_view

    if seeds is not None:
        from germline.studies.run_seeds import train_seeds

        run_seeds_with_view(train_seeds(settings, seeds, out), quiet=quiet)
        return

    def begin() -> "Training":
        from germline import run

        return run.train(settings, out)

    run_with_view(begin, quiet=quiet)


def resume(
    path: Run,
    overrides: Overrides = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="GENERATION",
            help="Begin a new run from the weights after this generation, or after the best one "
            "(best: highest held-out score); -1 is the start. Other settings are allowed, but for "
            "model and space.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --from: the new run directory; default: a new one in runs/."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Continue a stopped or killed run, or begin a new one from a generation of it.

    A folder of several run seeds (train seeds=0..4) goes on with the seeds that are not finished.

    A finished run goes on when it is given more generations. The weights it reaches are those of a
    run that was never interrupted, bit for bit.

    With --from, the run stays as it is, and a new run directory is written, which does not need the
    old one: it keeps the journal that led to its starting weights.
    """
    from germline.cli.run_loop import run_seeds_with_view, run_with_view
    from germline.types import GermlineError

    if (path / SEEDS_FILE).exists() and not (path / "run.json").exists():
        if overrides or start is not None:
            raise GermlineError(
                f"resume: {path} holds several run seeds of one config, which go on as they are: "
                "drop the settings and --from, or resume one of its runs"
            )
        from germline.studies.run_seeds import SeedStudy

        run_seeds_with_view(SeedStudy.open(path), quiet=quiet)
        return
    if out is not None and start is None:
        raise GermlineError(
            f"resume: --out={out} goes with --from, as a run is continued in its own directory: "
            "drop it, or name the generation to start from (--from best)"
        )

    def begin() -> "Training":
        from germline import run

        if start is None:
            return run.resume(path, overrides or [])
        return run.fork(path, _generation(start), overrides or [], out)

    run_with_view(begin, quiet=quiet)


def _seeds(overrides: list[str]) -> tuple[str | None, list[str]]:
    """Take `seeds=` out of the overrides."""
    from germline.types import GermlineError

    seeds = [one.removeprefix("seeds=") for one in overrides if one.startswith("seeds=")]
    others = [one for one in overrides if not one.startswith("seeds=")]
    if seeds and any(one.startswith("seed=") for one in others):
        raise GermlineError(
            f"seeds={seeds[-1]} names every run seed, so seed= would be ignored: drop one of them"
        )
    return (seeds[-1] if seeds else None), others


def _generation(text: str) -> int | Literal["best"]:
    from germline.types import GermlineError

    if text == "best":
        return "best"
    try:
        return int(text)
    except ValueError:
        raise GermlineError(
            f"resume: --from={text} is neither a generation nor best: use --from 40, or --from best"
        ) from None
