"""What `germline doctor` looks at: versions, devices, extras, a small self check, surroundings.

Every look is a function that returns findings; one that raises is a finding too. Nothing heavy is
imported before it is looked at, so that a broken installation can still be examined.
"""

import hashlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "broken"]
GIGABYTE = 1e9
SCARCE_DISK_GB = 2.0

# Frozen: these can change only with NOISE_VERSION, the shipped nano model, or a fault.
NOISE_DIGEST = "2a2c12ab0895b0ab2913e373424cb0ce355ea5bd7dbb326edc84da4f3a648cdd"
MODEL_DIGEST = "b0d83c7ba70450bb112e1baecfdd6bf46bc0914d0cd48ba51291e9f88dee2a07"
UPDATE_DIGEST = "aac9871ec718449e5cb4a829242c48ad5e3968254acc47156ad48dec38cadd5f"


@dataclass(frozen=True, slots=True)
class InstallationCheck:
    """One fact about this installation; what is not `ok` says what to do."""

    name: str
    state: State
    value: str
    remedy: str = ""


Look = Callable[[], Iterator[InstallationCheck]]


def check_versions() -> Iterator[InstallationCheck]:
    """List the versions of Python, germline and what germline cannot do without."""
    yield InstallationCheck("python", "ok", f"{platform.python_version()}, {platform.platform()}")
    yield InstallationCheck(
        "germline", "ok", _version("germline") or "not installed, run from a folder"
    )
    for one in requirements():
        version = _version(one.package)
        if one.extra is None and version is None:
            yield InstallationCheck(one.package, "broken", "missing", f"pip install '{one.wanted}'")
        elif one.extra is None:
            yield InstallationCheck(one.package, "ok", str(version))


def check_devices() -> Iterator[InstallationCheck]:
    """Describe processor, memory and accelerators."""
    import torch

    from germline.record.run_directory import describe_environment

    cores = _cores()
    threads, hint = torch.get_num_threads(), ""
    processor = describe_environment(threads)["processor"]
    yield InstallationCheck("processor", "ok", f"{processor}, {cores} cores for this process")
    yield InstallationCheck("memory", "ok", f"{_memory_gb():.1f} GB")
    if threads > cores:
        hint = f"more threads than cores wait for each other: engine.threads={cores}"
    yield InstallationCheck("threads", "note" if hint else "ok", f"{threads} of PyTorch", hint)
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        size = f"{about.total_memory / GIGABYTE:.1f} GB"
        computed = torch.ones(64, 64, device=f"cuda:{index}").sum().item()
        state: State = "ok" if computed == 64 * 64 else "broken"
        remedy = "" if state == "ok" else "the GPU computes wrongly: check its driver"
        yield InstallationCheck(f"cuda:{index}", state, f"{about.name}, {size}", remedy)
    if not torch.cuda.is_available():
        yield InstallationCheck(
            "cuda", "ok", "no GPU that PyTorch can use; everything runs on the CPU"
        )


def check_extras() -> Iterator[InstallationCheck]:
    """Say which extras are installed, and what to type for the others."""
    for extra in sorted({one.extra for one in requirements() if one.extra} - {"dev", "docs"}):
        packages = [one for one in requirements() if one.extra == extra]
        missing = [one for one in packages if _version(one.package) is None]
        if missing:
            install = " ".join(f"'{one.wanted}'" for one in missing)
            without = ", ".join(one.package for one in missing)
            yield InstallationCheck(
                extra, "note", f"not installed: {without}", f"pip install {install}"
            )
        else:
            found = ", ".join(f"{one.package} {_version(one.package)}" for one in packages)
            yield InstallationCheck(extra, "ok", found)


def check_noise() -> Iterator[InstallationCheck]:
    """Draw noise and compare its bits."""
    from germline import noise

    drawn = noise.weight_noise_rows(0, 0, range(4), "doctor", 1000)
    yield _compared("noise", hashlib.sha256(drawn.tobytes()).hexdigest(), NOISE_DIGEST)


def check_update() -> Iterator[InstallationCheck]:
    """Load the nano model, let it answer, and move it by one update."""
    from germline.config import load_config
    from germline.run.build_parts import make_engine
    from germline.types import Decoding, Example, Update

    space = {"kind": "low_rank", "rank": 1}
    on_cpu = {"kind": "inprocess", "device": "cpu", "dtype": "float32"}
    told = {"sigma": 0.005, "learning_rate": 0.01}  # numbers are in weight units, on any machine
    values = {"model": "nano", "space": space, "engine": on_cpu, "strategy": told}
    engine = make_engine(load_config(values))
    yield _compared("nano model", engine.weights.digest(), MODEL_DIGEST)
    asked = Example(0, "What is the capital of France?", "Paris", chat=True)
    said = engine.generate([None], [asked], Decoding(max_new_tokens=16))[0][0].text
    yield InstallationCheck("generation", "ok", f"{asked.prompt} {said}")
    engine.apply(Update(0, 0, 0.005, 0.01, (1.0, -0.5, 0.25)))
    yield _compared("update", engine.weights.digest(), UPDATE_DIGEST)


def check_graders() -> Iterator[InstallationCheck]:
    """Start a grader process and let it grade."""
    from germline.config import load_config
    from germline.run import build_run_parts

    with build_run_parts(load_config({"task": "arithmetic", "engine": "toy"})) as parts:
        example = parts.task.examples("test")[0]
        (grade,) = parts.graders.submit([example.answer], [example]).result(timeout=60)
    if grade.failure or grade.reward <= 0:
        remedy = "see that this machine lets a program start processes"
        yield InstallationCheck("graders", "broken", f"the right answer earned {grade}", remedy)
    else:
        yield InstallationCheck("graders", "ok", "a grader process started and graded")


def check_environment() -> Iterator[InstallationCheck]:
    """Look at the disk runs go to and at the environment variables that matter."""
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free / GIGABYTE
    scarce = free < SCARCE_DISK_GB
    advice = (
        "snapshots take the size of the model each: --out DIR on another disk" if scarce else ""
    )
    yield InstallationCheck(
        "disk", "note" if scarce else "ok", f"{free:.1f} GB free in {folder}", advice
    )
    if not os.access(folder, os.W_OK):
        yield InstallationCheck(
            "folder", "note", f"{folder} cannot be written to", "give --out DIR"
        )
    for name in ("OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            yield InstallationCheck(name, "ok", os.environ[name])


LOOKS: dict[str, tuple[Look, ...]] = {
    "versions": (check_versions,),
    "devices": (check_devices,),
    "extras": (check_extras,),
    "self check": (check_noise, check_update, check_graders),
    "surroundings": (check_environment,),
}


def check_installation() -> dict[str, list[InstallationCheck]]:
    """Look at everything, in order."""
    return {
        title: [one for look in looks for one in _found(look)] for title, looks in LOOKS.items()
    }


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package germline wants: always, or for one extra."""

    package: str
    wanted: str
    extra: str | None


def requirements() -> list[Requirement]:
    """Return what germline's own metadata lists; nothing where it is not installed."""
    try:
        lines = metadata.requires("germline") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        wanted, _, condition = (part.strip() for part in line.partition(";"))
        package = re.split(r"[^A-Za-z0-9._-]", wanted, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", condition)
        found.append(Requirement(package, wanted, extra[1] if extra else None))
    return found


def _found(look: Look) -> list[InstallationCheck]:
    findings: list[InstallationCheck] = []
    try:
        findings.extend(look())
    except Exception as error:  # noqa: BLE001 - whatever is broken is what we are here to tell
        what = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        name = look.__name__.removeprefix("check_").replace("_", " ")
        findings.append(
            InstallationCheck(name, "broken", what, "reinstall germline and its dependencies")
        )
    return findings


def _compared(name: str, found: str, expected: str) -> InstallationCheck:
    if found == expected:
        return InstallationCheck(name, "ok", f"digest {found[:12]}, as everywhere")
    return InstallationCheck(
        name,
        "broken",
        f"digest {found[:12]}, everywhere else {expected[:12]}",
        "runs from other machines will not replay here: reinstall germline, numpy and torch",
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cores() -> int:
    """Count the cores this process may use; a container may have a share of the machine only."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGABYTE
