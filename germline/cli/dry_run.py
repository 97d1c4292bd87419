"""What `germline train --dry-run` prints: settings, shapes, memory, time, downloads and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from germline.config import Config
    from germline.estimates.local_files import Source
    from germline.estimates.workload import Workload
    from germline.run.dry_run import DryRun

WHERE = {
    "embedded": "embedded in germline",
    "folder": "on this machine",
    "cache": "in the Hugging Face cache",
    "download": "would be downloaded",
    "without_weights": "a folder without weights, which training needs",
}


def print_dry_run(config: "Config", out: Path | None, *, runs: int, as_json: bool) -> bool:
    """Print what a training would do; return whether it is estimated to fit.

    Args:
        config: of the run.
        out: the run directory; None: a new one in runs/.
        runs: how many run seeds are trained, one after another.
        as_json: print JSON.

    Raises:
        GermlineError: the run would be refused.
    """
    from germline.cli.json_output import print_json
    from germline.run.dry_run import dry_run

    plan = dry_run(config, out)
    if as_json:
        print_json(as_plain(plan, runs))
    else:
        _show(plan, runs)
    return plan.fits


def as_plain(plan: "DryRun", runs: int) -> dict[str, Any]:
    """Return a dry run as values for JSON."""
    from dataclasses import asdict

    from germline.cli.estimate import estimate_values

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
            "held_out_examples": plan.held_out_examples,
            "prompt_tokens": texts.prompt,
            "shared_prompt_tokens": texts.prefix,
            "new_tokens": texts.new_tokens,
            "microbatches": None if found is None else found.work.microbatches,
            "microbatch_rows": None if found is None else found.work.rows,
            "microbatch_members": None if found is None else found.work.generating,
        },
        "estimate": None if found is None else estimate_values(found),
        "fits": plan.fits,
        "would_fit_with": list(plan.fits_with),
        "sources": [asdict(one) for one in plan.sources],
        "files": [asdict(one) for one in plan.files],
        "written_bytes": plan.written_bytes,
    }


def _show(plan: "DryRun", runs: int) -> None:
    import yaml

    from germline.cli.tables import print_indented
    from germline.report.diff import changed_settings

    typer.secho("config (what differs from the defaults; --json has all settings)", bold=True)
    typer.echo(yaml.safe_dump(changed_settings(plan.config), sort_keys=False))
    for title, lines in (
        ("batch", _batch(plan)),
        ("memory and time", _estimate(plan, runs)),
        ("model and data", [_source(one) for one in plan.sources]),
        (f"files in {plan.out}", _files(plan)),
    ):
        typer.secho(title, bold=True)
        for line in lines:
            print_indented(line)
        typer.echo("")
    typer.echo("Nothing was written, and the network was not used.")


def _batch(plan: "DryRun") -> list[str]:
    from germline.cli.estimate import rollouts

    texts, config = plan.texts, plan.config
    of_task = "" if plan.training_examples is None else f" of {plan.training_examples:,}"
    held_out = plan.held_out_examples or config.held_out.examples
    lines = [
        f"{rollouts(config, texts.examples, of_task)}, in each of {config.generations} generations",
        f"prompts of at most {texts.prompt} tokens ({texts.prefix} of them shared), completions of "
        f"at most {texts.new_tokens}",
        f"held-out scores on {held_out} examples, every {config.held_out.every} generations",
    ]
    if plan.estimate is not None:
        work = plan.estimate.work
        count = "1 microbatch" if work.microbatches == 1 else f"{work.microbatches} microbatches"
        lines.insert(
            1,
            f"{count} of {work.rows} rows{_cut(work)}",
        )
    return lines


def _cut(work: "Workload") -> str:
    if work.scored:
        return f" to generate; every member scores {work.scored} of the completions"
    return f" ({work.generating} members x {work.rows // work.generating} examples)"


def _estimate(plan: "DryRun", runs: int) -> list[str]:
    from germline.cli.estimate import PLACES, gigabytes, verdict
    from germline.report.text_format import duration, seconds

    found = plan.estimate
    if found is None:
        return [f"engine.kind={plan.config.engine.kind} has a small model of its own"]
    places = PLACES if found.machine.on_gpu else PLACES[1:]
    needs = ", ".join(
        f"{gigabytes(found.needed(one))} of {one} memory ({gigabytes(found.available(one))} "
        "available)"
        for one in places
    )
    count = plan.config.generations * runs
    return [
        f"on {found.machine.name}: {needs}",
        f"{seconds(found.seconds.total)} per generation, {duration(runs * found.run_s)} for "
        f"{count} generations with calibration and held-out scores; loading and snapshots "
        "come on top",
        found.machine.source_of_times,
        verdict(found, plan.fits_with),
    ]


def _source(source: "Source") -> str:
    from germline.report.text_format import size

    text = "" if source.bytes is None else f", {size(float(source.bytes))}"
    return f"{source.what} {source.name}: {WHERE[source.found]}{text}"


def _files(plan: "DryRun") -> list[str]:
    from germline.report.text_format import size

    lines = [f"{one.name:<18} {size(float(one.bytes)):>9}  {one.meaning}" for one in plan.files]
    return [*lines, f"{'all':<18} {size(float(plan.written_bytes)):>9}  approximately"]
