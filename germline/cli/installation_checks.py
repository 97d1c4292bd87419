"""The checks of `germline doctor`: versions, devices, extras, a self check, and the environment.

Each check is a function that yields rows; an exception becomes a row as well. Heavy dependencies
are imported inside the check that needs them, so that a broken installation can be checked too.
"""

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "broken"]
GIGABYTE = 1e9
SCARCE_DISK_GB = 2.0

# Frozen: these change only with NOISE_VERSION or the shipped nano model, or because of a bug.
NOISE_DIGEST = "2a2c12ab0895b0ab2913e373424cb0ce355ea5bd7dbb326edc84da4f3a648cdd"
MODEL_DIGEST = "b0d83c7ba70450bb112e1baecfdd6bf46bc0914d0cd48ba51291e9f88dee2a07"
UPDATE_DIGEST = "aac9871ec718449e5cb4a829242c48ad5e3968254acc47156ad48dec38cadd5f"


@dataclass(frozen=True, slots=True)
class InstallationCheck:
    """One fact about this installation; a row that is not `ok` has a remedy."""

    name: str
    state: State
    value: str
    remedy: str = ""


Check = Callable[[], Iterator[InstallationCheck]]


def check_versions() -> Iterator[InstallationCheck]:
    """List the versions of Python, germline and its required packages."""
    yield InstallationCheck("python", "ok", f"{platform.python_version()}, {platform.platform()}")
    yield InstallationCheck(
        "germline", "ok", _version("germline") or "not installed, run from a folder"
    )
    for needed in requirements():
        version = _version(needed.package)
        if needed.extra is None and version is None:
            remedy = f"pip install '{needed.specifier}'"
            yield InstallationCheck(needed.package, "broken", "missing", remedy)
        elif needed.extra is None:
            yield InstallationCheck(needed.package, "ok", str(version))


def check_devices() -> Iterator[InstallationCheck]:
    """Describe processor, memory and accelerators."""
    import torch

    from germline.estimates.machine import available_bytes, total_bytes, usable_cores
    from germline.record.run_directory import describe_environment

    cores = usable_cores()
    threads, hint = torch.get_num_threads(), ""
    processor = describe_environment(threads)["processor"]
    yield InstallationCheck("processor", "ok", f"{processor}, {cores} cores for this process")
    free, memory = available_bytes() / GIGABYTE, total_bytes() / GIGABYTE
    yield InstallationCheck("memory", "ok", f"{memory:.1f} GB, {free:.1f} GB available")
    if threads > cores:
        hint = f"more threads than cores slow each other down: set engine.threads={cores}"
    yield InstallationCheck("threads", "note" if hint else "ok", f"{threads} of PyTorch", hint)
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        size = f"{about.total_memory / GIGABYTE:.1f} GB"
        computed = torch.ones(64, 64, device=f"cuda:{index}").sum().item()
        state: State = "ok" if computed == 64 * 64 else "broken"
        remedy = "" if state == "ok" else "the GPU returns wrong results: check its driver"
        yield InstallationCheck(f"cuda:{index}", state, f"{about.name}, {size}", remedy)
    if not torch.cuda.is_available():
        yield InstallationCheck("cuda", "ok", "PyTorch finds no GPU; everything runs on the CPU")


def check_extras() -> Iterator[InstallationCheck]:
    """Report which extras are installed, and the command that installs the others."""
    extras = {needed.extra for needed in requirements() if needed.extra} - {"dev", "docs"}
    for extra in sorted(extras):
        packages = [needed for needed in requirements() if needed.extra == extra]
        missing = [needed for needed in packages if _version(needed.package) is None]
        if missing:
            without = ", ".join(needed.package for needed in missing)
            yield InstallationCheck(
                extra, "note", f"not installed: {without}", f"pip install 'germline[{extra}]'"
            )
        else:
            versions = ", ".join(
                f"{needed.package} {_version(needed.package)}" for needed in packages
            )
            yield InstallationCheck(extra, "ok", versions)


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
    yield InstallationCheck("generation", "ok", f"{example.prompt} {answer}")
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
        yield InstallationCheck("graders", "broken", f"the right answer earned {grade}", remedy)
    else:
        yield InstallationCheck("graders", "ok", "a grader process started and graded")


def check_environment() -> Iterator[InstallationCheck]:
    """Report the free disk space and the environment variables that germline depends on."""
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free / GIGABYTE
    scarce = free < SCARCE_DISK_GB
    advice = (
        "each snapshot is as large as the model: use --out DIR on another disk" if scarce else ""
    )
    yield InstallationCheck(
        "disk", "note" if scarce else "ok", f"{free:.1f} GB free in {folder}", advice
    )
    for name in ("OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            yield InstallationCheck(name, "ok", os.environ[name])


CHECKS: dict[str, tuple[Check, ...]] = {
    "versions": (check_versions,),
    "devices": (check_devices,),
    "extras": (check_extras,),
    "self check": (check_noise, check_update, check_graders),
    "environment": (check_environment,),
}


def check_installation() -> dict[str, list[InstallationCheck]]:
    """Run every check, in order."""
    return {
        title: [row for check in checks for row in _rows(check)] for title, checks in CHECKS.items()
    }


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that germline requires: always, or for one extra.

    Attributes:
        specifier: package and version range, as pip takes them.
    """

    package: str
    specifier: str
    extra: str | None


def requirements() -> list[Requirement]:
    """Return the requirements in germline's metadata; none if germline is not installed."""
    try:
        lines = metadata.requires("germline") or []
    except metadata.PackageNotFoundError:
        return []
    needed = []
    for line in lines:
        specifier, _, condition = (part.strip() for part in line.partition(";"))
        package = re.split(r"[^A-Za-z0-9._-]", specifier, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", condition)
        needed.append(Requirement(package, specifier, extra[1] if extra else None))
    return needed


def _rows(check: Check) -> list[InstallationCheck]:
    rows: list[InstallationCheck] = []
    try:
        rows.extend(check())
    except Exception as error:  # noqa: BLE001 - any failure of a check is a result of doctor
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        name = check.__name__.removeprefix("check_").replace("_", " ")
        rows.append(
            InstallationCheck(name, "broken", what, "reinstall germline and its dependencies")
        )
    return rows


def _compared(name: str, digest: str, expected: str) -> InstallationCheck:
    if digest == expected:
        return InstallationCheck(name, "ok", f"digest {digest[:12]}, as expected")
    return InstallationCheck(
        name,
        "broken",
        f"digest {digest[:12]}, expected {expected[:12]}",
        "runs of other machines cannot be replayed here: reinstall germline, numpy and torch",
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
