"""The estimate of `germline doctor --model M --config C`: memory, time, and settings that fit."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from germline.config import Config
    from germline.estimates.estimate import Estimate
    from germline.estimates.model_shape import ModelShape
    from germline.estimates.workload import TextLengths

GIGABYTE = 1e9


def print_estimate(
    config: Path | None, model: str | None, hardware: str | None, *, as_json: bool
) -> bool:
    """Print what a config needs; return whether it fits.

    Args:
        config: a file or the name of a shipped config; None: the defaults.
        model: replaces the config's.
        hardware: the name of another machine; None: this one.
        as_json: print JSON.

    Raises:
        GermlineError: a setting is wrong, or the model's config.json cannot be read.
    """
    from germline.config import load_config
    from germline.engines.pretrained import silence_transformers
    from germline.estimates.estimate import estimate, what_fits
    from germline.estimates.here import machine_here, machine_named
    from germline.estimates.model_shape import shape_of

    overrides = [] if model is None else [f"model={model}"]
    settings = load_config({} if config is None else config, overrides)
    shape = shape_of(settings.model)
    machine = machine_named(hardware) if hardware else machine_here(settings, shape)
    with silence_transformers():
        texts = _texts(settings)
    found = estimate(settings, shape, texts, machine)
    remedy = () if found.fits else what_fits(settings, shape, texts, machine)
    if as_json:
        plain = as_plain(settings, shape, found, remedy)
        typer.echo(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        _show(settings, shape, found, remedy)
    return found.fits


def _texts(config: "Config") -> "TextLengths":
    """Measure prompts with the model's tokenizer if it is on this machine."""
    from germline.engines.pretrained import load_tokenizer
    from germline.engines.prompt_batch import encode_prompt
    from germline.estimates.workload import text_lengths
    from germline.nano import NANO_DIR

    source = str(NANO_DIR) if config.model == "nano" else config.model
    if not Path(source).expanduser().is_dir():
        return text_lengths(config)
    tokenizer, _ = load_tokenizer(source)
    return text_lengths(config, lambda example: encode_prompt(tokenizer, example))


def as_plain(
    config: "Config", shape: "ModelShape", found: "Estimate", remedy: tuple[str, ...]
) -> dict[str, Any]:
    """Return an estimate as values for JSON."""
    work = found.work
    return {
        "model": config.model,
        "weights": shape.numbers,
        "searched": work.searched,
        "machine": found.machine.name,
        "microbatch": {"rows": work.rows, "members": work.members_at_once},
        "texts": {"prompt": work.texts.prompt, "new": work.texts.new_tokens},
        "parts": [
            {"name": one.name, "where": one.place, "when": one.phase, "bytes": round(one.bytes)}
            for one in found.parts
        ],
        "needed": {place: round(found.needed(place)) for place in ("device", "host")},
        "available": {
            place: None if math.isinf(found.available(place)) else round(found.available(place))
            for place in ("device", "host")
        },
        "snapshot_bytes": round(found.snapshot_bytes),
        "bytes_per_member": round(found.wire_bytes),
        "seconds": {
            name: getattr(found.seconds, name)
            for name in ("members", "prefill", "decode", "update", "digest", "total")
        },
        "fits": found.fits,
        "would_fit_with": list(remedy),
    }


def _show(
    config: "Config", shape: "ModelShape", found: "Estimate", remedy: tuple[str, ...]
) -> None:
    work, seconds, machine = found.work, found.seconds, found.machine
    typer.secho(f"{config.model} on {machine.name}", bold=True)
    typer.echo(
        f"{shape.numbers / 1e9:.3f} B weights served in {str(work.dtype).removeprefix('torch.')}, "
        f"{work.searched:,} numbers searched ({config.space.kind})\n"
        f"{work.members} members x {work.examples} examples, microbatches of {work.rows} rows; "
        f"prompts of {work.texts.prompt} tokens, {work.texts.new_tokens} new ones\n"
    )
    for one in sorted(found.parts, key=lambda part: part.place):
        if one.bytes:
            where = one.place if machine.on_gpu else "host"
            typer.echo(f"  {one.name:<22}  {where:<6}  {one.phase:<10}  {gigabytes(one.bytes):>9}")
    for place in ("device", "host") if machine.on_gpu else ("host",):
        available = found.available(place)
        said = "" if math.isinf(available) else f", available {gigabytes(available)}"
        typer.echo(f"  {place}: needs {gigabytes(found.needed(place))} at once{said}")
    typer.echo(
        f"\n  a generation: {seconds.total:.3g} s (members {seconds.members:.3g}, prefill "
        f"{seconds.prefill:.3g}, decode {seconds.decode:.3g}, update {seconds.update:.3g}, digest "
        f"{seconds.digest:.3g})\n"
        f"  a snapshot: {gigabytes(found.snapshot_bytes)}; bytes per member on the wire: "
        f"{found.wire_bytes:,.0f}\n"
    )
    typer.secho(verdict(found, remedy), fg="green" if found.fits else "red")


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
    """Format bytes in GB (10^9 bytes)."""
    return f"{size / GIGABYTE:.2f} GB"
