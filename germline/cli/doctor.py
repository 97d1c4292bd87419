"""The command `germline doctor`: check the installation.

Each check is a function that yields rows; an exception becomes a row as well. Heavy dependencies
are imported inside the check that needs them, so that a broken installation can be checked too.
"""

import hashlib
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import typer

from germline.cli.output import AsJson, print_json, print_table
from germline.errors import count_of

DOCTOR_EXAMPLES = (
    "germline doctor",
    "germline doctor --json > doctor.json      # for a bug report",
)
GIGABYTE = 1e9

# Frozen: these change only with NOISE_VERSION or the shipped nano model, or because of a bug.
NOISE_DIGEST = "2a2c12ab0895b0ab2913e373424cb0ce355ea5bd7dbb326edc84da4f3a648cdd"
MODEL_DIGEST = "b0d83c7ba70450bb112e1baecfdd6bf46bc0914d0cd48ba51291e9f88dee2a07"
UPDATE_DIGEST = "aac9871ec718449e5cb4a829242c48ad5e3968254acc47156ad48dec38cadd5f"


def doctor(*, as_json: AsJson = False) -> None:
    """Check the installation: what is installed, what works, and what can be added.

    Draws noise, loads the nano model, applies an update, starts a grader, and compares digests with
    the expected ones, which are the same on every machine. Exits with status 1 if a check fails.

    Whether a run fits this machine is what `germline train CONFIG --dry-run` says.
    """
    every = [row for check in CHECKS for row in _rows(check)]
    broken = [row for row in every if row.state == "broken"]
    if as_json:
        print_json({"healthy": not broken, "checks": every})
    else:
        remarks = (f"{one.value} -> {one.remedy}" if one.remedy else one.value for one in every)
        rows = [(one.state, one.name, text) for one, text in zip(every, remarks, strict=True)]
        print_table(("state", "check", "remark"), rows)
        typer.echo(f"{count_of(len(broken), 'checks')} failed" if broken else "All checks passed.")
    if broken:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class InstallationCheck:
    """One fact about this installation; a row that is not `ok` has a remedy."""

    name: str
    value: str
    state: Literal["ok", "note", "broken"] = "ok"
    remedy: str = ""


Check = Callable[[], Iterator[InstallationCheck]]


def check_versions() -> Iterator[InstallationCheck]:
    """List the versions of Python, germline and what it requires, and the extras to install."""
    yield InstallationCheck("python", f"{platform.python_version()}, {platform.platform()}")
    try:
        lines = metadata.requires("germline") or []
        named = metadata.metadata("germline").get_all("Provides-Extra") or []
        yield InstallationCheck("germline", metadata.version("germline"))
    except metadata.PackageNotFoundError:
        yield InstallationCheck("germline", "not installed, run from a folder")
        return
    from packaging.requirements import Requirement

    for needed in map(Requirement, lines):
        is_of = needed.marker.evaluate if needed.marker else lambda _: False
        extras = [e for e in named if e not in ("dev", "docs") and is_of({"extra": e})]
        is_required = needed.marker is None or is_of({"extra": ""})
        if not (is_required or extras):
            continue  # a tool for development
        name = needed.name if is_required else f"{needed.name} ({', '.join(extras)})"
        try:
            yield InstallationCheck(name, metadata.version(needed.name))
        except metadata.PackageNotFoundError:
            package = needed if is_required else f"germline[{extras[0]}]"
            state: Literal["note", "broken"] = "broken" if is_required else "note"
            yield InstallationCheck(name, "not installed", state, f"pip install '{package}'")


def check_devices() -> Iterator[InstallationCheck]:
    """Describe processor, memory and accelerators."""
    import torch

    from germline.estimates.machine import available_bytes, total_bytes, usable_cores
    from germline.record.run_directory import describe_environment

    threads, cores = torch.get_num_threads(), count_of(usable_cores(), "cores")
    processor = describe_environment(threads)["processor"]
    about = f"{processor}, {cores} for this process, {count_of(threads, 'threads')} of PyTorch"
    yield InstallationCheck("processor", about)
    free, memory = available_bytes() / GIGABYTE, total_bytes() / GIGABYTE
    yield InstallationCheck("memory", f"{memory:.1f} GB, {free:.1f} GB available")
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        size = f"{device.name}, {device.total_memory / GIGABYTE:.1f} GB"
        yield InstallationCheck(f"cuda:{index}", size)
    if not torch.cuda.is_available():
        yield InstallationCheck("cuda", "PyTorch finds no GPU; everything runs on the CPU")


def check_noise() -> Iterator[InstallationCheck]:
    """Draw noise and compare its digest."""
    from germline import noise

    drawn = noise.draw_noise_rows(0, 0, range(4), "doctor", 1000)
    yield _compared("noise", hashlib.sha256(drawn.tobytes()).hexdigest(), NOISE_DIGEST)


def check_update() -> Iterator[InstallationCheck]:
    """Load the nano model, generate a text, and apply one update."""
    from germline.config import load_config
    from germline.run.build_parts import make_engine
    from germline.types import Decoding, Example, Update

    space = {"kind": "low_rank", "rank": 1}
    on_cpu = {"kind": "inprocess", "device": "cpu", "dtype": "float32"}
    strategy = {"sigma": 0.005, "learning_rate": 0.01}  # numbers need no calibration
    values = {"model": "nano", "space": space, "engine": on_cpu, "strategy": strategy}
    engine = make_engine(load_config(values))
    yield _compared("nano model", engine.weights.digest(), MODEL_DIGEST)
    example = Example(0, "What is the capital of France?", "Paris", chat=True)
    answer = engine.generate([None], [example], Decoding(max_new_tokens=16))[0][0].text
    yield InstallationCheck("generation", f"{example.prompt} {answer}")
    engine.apply(Update(0, 0, 0.005, 0.01, (1.0, -0.5, 0.25)))
    yield _compared("update", engine.weights.digest(), UPDATE_DIGEST)


def check_graders() -> Iterator[InstallationCheck]:
    """Start a grader process and grade one answer."""
    from germline.config import load_config
    from germline.run import build_run_parts

    with build_run_parts(load_config({"task": "arithmetic", "engine": "toy"})) as parts:
        example = parts.task.examples("test")[0]
        (grade,) = parts.graders.submit([example.answer], [example]).result(timeout=60)
    if grade.failure or grade.reward <= 0:
        remedy = "check that programs may start processes on this machine"
        yield InstallationCheck("graders", f"the right answer earned {grade}", "broken", remedy)
    else:
        yield InstallationCheck("graders", "a grader process started and graded")


CHECKS: tuple[Check, ...] = (
    check_versions,
    check_devices,
    check_noise,
    check_update,
    check_graders,
)


def _rows(check: Check) -> list[InstallationCheck]:
    rows: list[InstallationCheck] = []
    try:
        rows.extend(check())
    except Exception as error:  # noqa: BLE001 - any failure of a check is a result of doctor
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        name = check.__name__.removeprefix("check_")
        remedy = "reinstall germline and its dependencies"
        rows.append(InstallationCheck(name, what, "broken", remedy))
    return rows


def _compared(name: str, digest: str, expected: str) -> InstallationCheck:
    if digest == expected:
        return InstallationCheck(name, f"digest {digest[:12]}, as expected")
    what = f"digest {digest[:12]}, expected {expected[:12]}"
    remedy = "runs of other machines cannot be replayed here: reinstall germline, numpy and torch"
    return InstallationCheck(name, what, "broken", remedy)
