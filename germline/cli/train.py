"""The commands `germline train` and `germline resume`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from germline.cli.arguments import ConfigFile, Overrides, Run, read_generation
from germline.cli.output import AsJson, print_json, print_table
from germline.errors import count_of

if TYPE_CHECKING:
    from germline.config import Config
    from germline.estimates.memory import Estimate
    from germline.run import Training
    from germline.run.dry_run import DryRun

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result, no progress.")]

TRAIN_EXAMPLES = (
    "germline train configs/conciseness.yaml",
    "germline train configs/countdown.yaml strategy.sigma=0.002 seed=3",
    "germline train configs/countdown.yaml --dry-run",
    "germline train configs/countdown.yaml seeds=0..4 --out runs/five-seeds",
    "germline train configs/arithmetic.yaml probes/sums/probe.yaml",
)
RESUME_EXAMPLES = (
    "germline resume runs/sums",
    "germline resume runs/sums generations=200",
    "germline resume runs/sums --from best strategy.learning_rate=0.002",
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
    dry: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: print the resolved config, batch shapes and the memory to expect. "
            "Exits with status 1 if the run is not expected to fit.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model and write a run directory.

    Ctrl-C finishes the current generation and stops; a second Ctrl-C stops at once. In both cases
    the run can be resumed.

    With seeds=0..4 (or seeds=0,3,7) the config is trained once with each of these run seeds, in one
    folder, and a report over all of them is written. Seeds that the folder has are trained on.
    """
    from germline.config import load_config

    seeds, others = _seeds(overrides or [])
    settings = load_config(config, others)  # reports errors before torch is imported
    if dry:
        _print_dry_run(settings, seeds, out, as_json=as_json)
        return

    from germline.cli.run_loop import run_seeds_with_view, run_with_view

    if seeds is not None:
        from germline.studies.run_seeds import train_seeds

        run_seeds_with_view(train_seeds(settings, seeds, out), quiet=quiet, as_json=as_json)
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
        Any,
        typer.Option(
            "--from",
            metavar="GENERATION",
            parser=read_generation,
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
    from germline.record.run_paths import check_single_run, is_seed_study
    from germline.types import GermlineError

    if out is not None and start is None:
        raise GermlineError(
            f"resume: --out={out} needs --from, because a run is continued in its own directory: "
            "drop it, or give the generation to start from (--from best)"
        )
    if is_seed_study(path):
        if start is not None:
            check_single_run(path)
        from germline.studies.run_seeds import SeedStudy

        run_seeds_with_view(SeedStudy.open(path, overrides or []), quiet=quiet, as_json=as_json)
        return

    def begin() -> "Training":
        from germline import run

        if start is None:
            return run.resume(path, overrides or [])
        return run.fork(path, start, overrides or [], out)

    run_with_view(begin, quiet=quiet, as_json=as_json)


def _print_dry_run(config: "Config", seeds: str | None, out: Path | None, *, as_json: bool) -> None:
    from germline.run.dry_run import dry_run

    runs = 1
    if seeds is not None:
        from germline.studies.run_seeds import train_seeds

        study = train_seeds(config, seeds, out)
        config = study.config.model_copy(update={"seed": study.seeds[0]})
        runs, out = len(study.seeds), study.path(study.seeds[0])
    plan = dry_run(config, out)
    if as_json:
        print_json(as_plain(plan, runs))
    else:
        _show(plan, runs)
    if not plan.fits:
        raise typer.Exit(1)


def as_plain(plan: "DryRun", runs: int) -> dict[str, Any]:
    """Return a dry run as values for JSON."""
    texts, found = plan.texts, plan.estimate
    return {
        "out": str(plan.out),
        "runs": runs,
        "config": plan.config.model_dump(mode="json"),
        "batch": {
            "members": plan.config.strategy.population,
            "examples": texts.examples,
            "scored_per_member": plan.config.method.scored_rows(texts.examples),
            "training_examples": plan.training_examples,
            "prompt_tokens": texts.prompt,
            "shared_prompt_tokens": texts.prefix,
            "new_tokens": texts.new_tokens,
            "microbatch_rows": None if found is None else found.work.rows,
        },
        "memory": None if found is None else memory_values(found),
        "fits": plan.fits,
    }


def memory_values(found: "Estimate") -> dict[str, Any]:
    """Return the memory of an estimate as values for JSON."""
    available = {place: found.available(place) for place in found.places}
    return {
        "machine": found.machine.name,
        "searched": found.work.searched,
        "parts": [
            {"name": part.name, "where": part.place, "when": part.phase, "bytes": round(part.bytes)}
            for part in found.parts
        ],
        "needed": {place: round(found.needed(place)) for place in found.places},
        "available": {at: None if math.isinf(n) else round(n) for at, n in available.items()},
    }


def _show(plan: "DryRun", runs: int) -> None:
    from germline.config.config_files import as_yaml
    from germline.estimates.memory import LESS_MEMORY
    from germline.report.comparison import changed_settings
    from germline.report.text_format import run_title, size

    texts, config, found = plan.texts, plan.config, plan.estimate
    typer.echo("\n".join([*run_title(config), "", as_yaml(changed_settings(config))]))
    rollouts = config.method.generated_rows(config.strategy.population or 1)
    typer.echo(
        f"{plan.out}{'' if runs == 1 else f', {runs} runs'}: "
        f"{count_of(config.generations, 'generations')} of {rollouts:,} x "
        f"{count_of(texts.examples, 'examples')} of {plan.training_examples:,}\n"
        f"prompts of at most {texts.prompt} tokens ({texts.prefix} of them shared), completions of "
        f"at most {texts.new_tokens}"
    )
    if found is not None:
        work = found.work
        typer.echo(
            f"{work.searched:,} numbers searched ({config.space.kind}); microbatches of "
            f"{count_of(work.rows, 'rows')}\n"
        )
        parts = sorted((part for part in found.parts if part.bytes), key=lambda part: part.place)
        on_gpu = found.machine.on_gpu
        rows = [
            (part.name, part.place if on_gpu else "host", part.phase, size(part.bytes))
            for part in parts
        ]
        print_table(("memory", "place", "phase", "size"), rows)
        for place in found.places:
            available = found.available(place)
            of = "" if math.isinf(available) else f" of {size(available)} available"
            needed = size(found.needed(place))
            typer.echo(f"{place} memory of {found.machine.name}: {needed} at once{of}")
    if not plan.fits:
        typer.secho(f"It does not fit. Less is needed by {LESS_MEMORY}.", fg="red")
    typer.echo("Nothing was written.")


def _seeds(overrides: list[str]) -> tuple[str | None, list[str]]:
    from germline.types import GermlineError

    seeds = [one.removeprefix("seeds=") for one in overrides if one.startswith("seeds=")]
    others = [one for one in overrides if not one.startswith("seeds=")]
    if seeds and any(one.startswith("seed=") for one in others):
        raise GermlineError(
            f"seeds={seeds[-1]} names every run seed, so seed= would be ignored: drop one of them"
        )
    return (seeds[-1] if seeds else None), others
