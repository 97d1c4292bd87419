"""The commands that say what there is: `germline list` and `germline doctor`."""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from germline.cli.output import AsJson, print_json, print_stderr, print_table, score_values
from germline.errors import count_of

GROUPS = {
    "tasks": "task",
    "environments": "task",
    "spaces": "space",
    "methods": "method",
    "strategies": "strategy",
    "optimizers": "optimizer",
    "shaping": "shaping",
    "rewards": "reward",
    "scorers": "scorer",
    "engines": "engine",
}
"""Kind of component -> its group in the registry."""

WHAT = (*GROUPS, "configs", "settings", "runs")

LIST_EXAMPLES = ("germline list tasks", "germline list settings | grep sigma", "germline list runs")

LONGEST_SUMMARY = 100

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Column headings, and the rows under them."""


def show(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"One of {', '.join(WHAT)}.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="With runs: the folder of the run directories; default: runs."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """List names for a config, settings, shipped configs, or runs.

    Names that installed plugins add are included. In a pipe, each row is a line and its columns are
    separated by tabs; settings and runs have a first line with headings. The comments of the
    shipped configs are shortened; --json prints the whole of them.

    A run is stopped if it has generations left and no process trains it: its files do not tell
    whether it was interrupted or ended with an error. Resume it, which shows an error again.
    """
    if what not in WHAT:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(WHAT)}")
    if what == "runs":
        _list_runs(folder or Path("runs"), as_json=as_json)
        return
    if folder:
        raise typer.BadParameter(f"{str(folder)!r}: only `list runs` takes a folder")
    columns, rows = {"configs": _configs, "settings": _settings}.get(what, lambda: _names(what))()
    if as_json:
        names = ("name", *columns[1:])
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if what == "configs":  # their comments are paragraphs
        from germline.report.text_format import one_line_excerpt

        rows = [(name, one_line_excerpt(text, LONGEST_SUMMARY)) for name, text in rows]
    if rows:
        print_table(columns, rows)
    else:
        print_stderr(f"no {what} found")


def _names(what: str) -> Rows:
    from germline import registry
    from germline.config import EpisodeSettings
    from germline.config.reference import meaning_of

    group, rows = GROUPS[what], []
    for name, entry in registry.entries(group).items():
        if what == "environments" and not issubclass(entry.registered, EpisodeSettings):
            continue
        package = registry.package_of(entry.registered)
        mark = f"(plugin {package.name}) " if package else ""
        is_reward = group == "reward"
        described = registry.implementation(group, name).grade if is_reward else entry.registered
        rows.append((name, mark + meaning_of(described)))
    for package_name, why in registry.load_plugins().items():
        print_stderr(f"the plugin {package_name} cannot be imported: {why}", "red")
    return (group, "meaning"), rows


def _configs() -> Rows:
    from germline.config.config_files import config_summary, preset_configs

    return ("config", "meaning"), [
        (name, config_summary(path)) for name, path in preset_configs().items()
    ]


def _settings() -> Rows:
    from germline.config.reference import OverrideName, override_names, settings_of
    from germline.studies.sweep import SweepOptions

    of_sweep = [OverrideName(f"sweep.{one.name}", (), one) for one in settings_of(SweepOptions)]
    rows = []
    for entry in [*override_names(), *of_sweep]:
        setting = entry.setting
        where = f" (of {', '.join(entry.kinds)})" if entry.kinds else ""
        accepts = setting.accepts.replace("`", "")
        rows.append((entry.name, setting.default, f"{setting.meaning}{where} [{accepts}]".strip()))
    return ("setting", "default", "meaning"), rows


def _list_runs(folder: Path, *, as_json: bool) -> None:
    from germline.record.run_paths import is_seed_study, run_directories, seed_runs

    runs = [
        _run_values(run)
        for path in run_directories(folder)
        for run in (seed_runs(path) if is_seed_study(path) else [path])
    ]
    if as_json:
        print_json(runs)
        return
    for run in runs:
        if "reason" in run:
            print_stderr(run["reason"], "red")
    if runs:
        print_table(("run", "task", "done", "held-out", "state"), [*map(_run_cells, runs)])
    else:
        print_stderr("no runs found")


def _run_values(path: Path) -> dict[str, Any]:
    from germline.record.run_paths import written_at
    from germline.report.run_facts import RunFacts
    from germline.types import GermlineError

    try:
        run = RunFacts(path)
        scores = run.scores  # a damaged file of scores is found here
    except (GermlineError, OSError) as error:
        return {"run": path, "state": "damaged", "reason": str(error)}
    if run.damage:
        return {"run": path, "state": "damaged", "reason": run.damage}
    first, last = (scores[0], scores[-1]) if scores else (None, None)
    start = None if first is None or first.generation else first
    held_out = {"start": start, "newest": last, "best": run.best}
    engine = run.config.engine
    return {
        "run": path,
        "state": run.shown_state,
        "task": run.config.task.title,
        "model": engine.kind if engine.has_own_model else run.config.model,
        "done": run.done,
        "generations": run.config.generations,
        "held_out": {name: one and score_values(one) for name, one in held_out.items()},
        "age_s": max(0.0, time.time() - written_at(path)),
    }


def _run_cells(run: dict[str, Any]) -> tuple[str, ...]:
    from germline.report.text_format import number

    if "reason" in run:
        return str(run["run"]), "-", "-", "-", run["state"]
    ends = {name: score and score["mean"] for name, score in run["held_out"].items()}
    shown = [f"{name} {number(mean)}" for name, mean in ends.items() if mean is not None]
    done = f"{run['done']}/{run['generations']}"
    return str(run["run"]), run["task"], done, ", ".join(shown) or "-", run["state"]


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
        named = metadata.metadata("germline").get_all("Provides-Extra", [])
        yield InstallationCheck("germline", metadata.version("germline"))
    except metadata.PackageNotFoundError:
        yield InstallationCheck("germline", "not installed, run from a folder")
        return
    from packaging.requirements import Requirement

    for needed in map(Requirement, lines):
        marker, name, package = needed.marker, needed.name, str(needed)
        if marker is not None:
            of = [name for name in named if marker.evaluate({"extra": name})]
            extras = [name for name in of if name not in ("dev", "docs")]
            if not extras:
                continue  # a tool for development
            name, package = f"{name} ({', '.join(extras)})", f"germline[{extras[0]}]"
        try:
            yield InstallationCheck(name, metadata.version(needed.name))
        except metadata.PackageNotFoundError:
            state: Literal["note", "broken"] = "broken" if marker is None else "note"
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
