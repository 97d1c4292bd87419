"""The estimate of `germline doctor --model M --config C`: memory, time, and settings that fit."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from germline.cli.json_output import print_json

if TYPE_CHECKING:
    from germline.config import Config
    from germline.estimates.estimate import Estimate
    from germline.estimates.memory import Place
    from germline.estimates.model_shape import ModelShape

GIGABYTE = 1e9
PLACES: tuple["Place", ...] = ("device", "host")


def print_estimate(
    config: Path | None,
    overrides: Sequence[str],
    model: str | None,
    hardware: str | None,
    *,
    as_json: bool,
) -> bool:
    """Print what a config needs; return whether it fits.

    Args:
        config: a file or the name of a shipped config; None: the defaults.
        overrides: settings that override the config.
        model: replaces the config's.
        hardware: the name of another machine; None: this one.
        as_json: print JSON.

    Raises:
        GermlineError: a setting is wrong, or the model's config.json cannot be read.
    """
    from germline.config import load_config
    from germline.estimates.estimate import estimate, what_fits
    from germline.estimates.here import machine_here, machine_named, texts_here
    from germline.estimates.model_shape import shape_of
    from germline.run.run_checks import check_settings
    from germline.tasks import make_task

    of_model = [] if model is None else [f"model={model}"]
    settings = load_config({} if config is None else config, [*overrides, *of_model])
    shape = shape_of(settings.model)
    machine = machine_named(hardware) if hardware else machine_here(settings, shape)
    task = make_task(settings.task)
    check_settings(settings, task)
    texts = texts_here(settings, task)
    found = estimate(settings, shape, texts, machine)
    remedy = () if found.fits else what_fits(settings, shape, texts, machine)
    if as_json:
        plain = as_plain(settings, shape, found, remedy)
        print_json(plain)
    else:
        _show(settings, shape, found, remedy)
    return found.fits


def as_plain(
    config: "Config", shape: "ModelShape", found: "Estimate", remedy: tuple[str, ...]
) -> dict[str, Any]:
    """Return an estimate, and what it is for, as values for JSON."""
    work = found.work
    return {
        "model": config.model,
        "weights": shape.numbers,
        "searched": work.searched,
        "microbatch": {"rows": work.rows, "members": work.generating},
        "scored_per_member": work.scored,
        "texts": {"prompt": work.texts.prompt, "new": work.texts.new_tokens},
        **estimate_values(found),
        "fits": found.fits,
        "would_fit_with": list(remedy),
    }


def estimate_values(found: "Estimate") -> dict[str, Any]:
    """Return memory and time of an estimate as values for JSON."""
    return {
        "machine": found.machine.name,
        "parts": [
            {"name": part.name, "where": part.place, "when": part.phase, "bytes": round(part.bytes)}
            for part in found.parts
        ],
        "needed": {place: round(found.needed(place)) for place in PLACES},
        "available": {
            place: None if math.isinf(found.available(place)) else round(found.available(place))
            for place in PLACES
        },
        "snapshot_bytes": round(found.snapshot_bytes),
        "bytes_per_member": round(found.wire_bytes),
        "run_s": found.run_s,
        "seconds": {
            name: getattr(found.seconds, name)
            for name in ("members", "prefill", "decode", "score", "update", "digest", "total")
        },
    }


def _show(
    config: "Config", shape: "ModelShape", found: "Estimate", remedy: tuple[str, ...]
) -> None:
    from germline.estimates.hardware import name_of
    from germline.report.text_format import seconds as shown

    work, seconds, machine = found.work, found.seconds, found.machine
    typer.secho(f"{config.model} on {machine.name}", bold=True)
    typer.echo(
        f"{shape.size} weights served in {name_of(work.dtype)}, "
        f"{work.searched:,} numbers searched ({config.space.kind})\n"
        f"{rollouts(config, work.examples)}, microbatches of {work.rows} rows; "
        f"prompts of {work.texts.prompt} tokens, {work.texts.new_tokens} new ones\n"
    )
    parts = sorted((one for one in found.parts if one.bytes), key=lambda part: part.place)
    width = max(len(one.name) for one in parts)
    for one in parts:
        where = one.place if machine.on_gpu else "host"
        typer.echo(f"  {one.name:<{width}}  {where:<6}  {one.phase:<11}  {gigabytes(one.bytes):>9}")
    for place in ("device", "host") if machine.on_gpu else ("host",):
        available = found.available(place)
        said = "" if math.isinf(available) else f", available {gigabytes(available)}"
        typer.echo(f"  {place}: needs {gigabytes(found.needed(place))} at once{said}")
    scoring = f"scoring {shown(seconds.score)}, " if work.scored else ""
    typer.echo(
        f"\n  a generation: {shown(seconds.total)} (members {shown(seconds.members)}, prefill "
        f"{shown(seconds.prefill)}, decode {shown(seconds.decode)}, {scoring}update "
        f"{shown(seconds.update)}, digest {shown(seconds.digest)})\n"
        f"  the run of {config.generations:,} generations, with calibration and held-out scores: "
        f"{shown(found.run_s)}\n"
        f"  {machine.source_of_times}\n"
        f"  a snapshot: {gigabytes(found.snapshot_bytes)}; bytes per member on the wire: "
        f"{found.wire_bytes:,.0f}\n"
    )
    if machine.lacks(work.dtype):
        typer.secho(
            f"A {machine.name} does not compute in {name_of(work.dtype)}: a run is refused there. "
            "Set engine.dtype=float16.",
            fg="red",
        )
    typer.secho(verdict(found, remedy), fg="green" if found.fits else "red")


def rollouts(config: "Config", examples: int, of_task: str = "") -> str:
    """Say what generates and scores in a generation."""
    method, members = config.method, config.strategy.population or "some"
    if method.members_generate:
        return f"{members} members x {examples} examples{of_task}"
    samples = f"{method.generated_rows(1)} samples x {examples} examples{of_task}"
    if (updates := getattr(method, "updates_per_batch", 1)) > 1:
        samples += f" for every {updates} generations"
    return f"{samples}, scored by {members} members"


def verdict(found: "Estimate", remedy: tuple[str, ...]) -> str:
    """Say whether the run fits, and with which settings it would."""
    if found.fits:
        return "It fits."
    if remedy:
        return f"It does not fit. It fits with: {' '.join(remedy)}"
    return (
        "It does not fit, even with half precision, masters on the host, small microbatches and "
        "space=lora together: use a smaller model or a larger machine"
    )


def gigabytes(size: int | float) -> str:
    """Format bytes in GB (10^9 bytes), and less than 0.1 GB in a smaller unit."""
    from germline.report import text_format

    return f"{size / GIGABYTE:.2f} GB" if size >= GIGABYTE / 10 else text_format.size(float(size))
