"""What `germline train --dry-run` prints: settings, shapes, memory and downloads."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from germline.cli.output import print_json, print_stdout, print_table

if TYPE_CHECKING:
    from germline.config import Config
    from germline.estimates.memory import Estimate
    from germline.run.dry_run import DryRun


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
    from germline.run.dry_run import dry_run

    plan = dry_run(config, out)
    if as_json:
        print_json(as_plain(plan, runs))
    else:
        _show(plan, runs)
    return plan.fits


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
            "microbatches": None if found is None else found.work.microbatches,
            "microbatch_rows": None if found is None else found.work.rows,
        },
        "memory": None if found is None else memory_values(found),
        "fits": plan.fits,
        "sources": [asdict(one) for one in plan.sources],
    }


def memory_values(found: "Estimate") -> dict[str, Any]:
    """Return the memory of an estimate as values for JSON."""

    def available(size: float) -> int | None:
        return None if math.isinf(size) else round(size)

    return {
        "machine": found.machine.name,
        "searched": found.work.searched,
        "parts": [
            {"name": part.name, "where": part.place, "when": part.phase, "bytes": round(part.bytes)}
            for part in found.parts
        ],
        "needed": {place: round(found.needed(place)) for place in found.places},
        "available": {place: available(found.available(place)) for place in found.places},
    }


def _show(plan: "DryRun", runs: int) -> None:
    from germline.config.config_files import as_yaml
    from germline.report.diff import changed_settings
    from germline.report.text_format import size

    typer.secho("config (what differs from the defaults; --json has all settings)", bold=True)
    typer.echo(as_yaml(changed_settings(plan.config)))
    typer.secho("run", bold=True)
    for line in _run(plan, runs):
        print_stdout(f"  {line}")
    typer.echo("")
    if plan.estimate is not None:
        found = plan.estimate
        rows = [
            (
                part.name,
                part.place if found.machine.on_gpu else "host",
                part.phase,
                size(part.bytes),
            )
            for part in sorted(found.parts, key=lambda part: part.place)
            if part.bytes
        ]
        print_table(("memory", "place", "phase", "size"), rows)
        for place in found.places:
            available = found.available(place)
            of = "" if math.isinf(available) else f" of {size(available)} available"
            needed = size(found.needed(place))
            print_stdout(f"{place} memory of {found.machine.name}: {needed} at once{of}")
        typer.echo("")
    for source in plan.sources:
        where = "on this machine" if source.is_here else "would be downloaded"
        bytes_of = "" if source.bytes is None else f", {size(source.bytes)}"
        print_stdout(f"{source.what} {source.name}: {where}{bytes_of}")
    if not plan.fits:
        from germline.estimates.memory import LESS_MEMORY

        typer.secho(f"It does not fit. Less is needed by {LESS_MEMORY}.", fg="red")
    typer.echo("Nothing was written.")


def _run(plan: "DryRun", runs: int) -> list[str]:
    texts, config = plan.texts, plan.config
    members, per_member = f"{config.strategy.population or 'some'} members", ""
    if not config.method.members_generate:
        per_member = f", scored by {members}"
        members = f"{config.method.generated_rows(1)} samples"
    of_task = "" if plan.training_examples is None else f" of {plan.training_examples:,}"
    batch = f"{members} x {texts.examples} examples{of_task}{per_member}"
    count = "" if runs == 1 else f", {runs} times"
    lines = [
        f"in {plan.out}{count}: {config.generations} generations of {batch}",
        f"prompts of at most {texts.prompt} tokens ({texts.prefix} of them shared), completions of "
        f"at most {texts.new_tokens}",
    ]
    if plan.estimate is not None:
        work = plan.estimate.work
        lines.append(
            f"{work.searched:,} numbers searched ({config.space.kind}); microbatches per "
            f"generation: {work.microbatches} of {work.rows} rows"
        )
    return lines
