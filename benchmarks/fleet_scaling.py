"""Simulated duration of a generation on 8 to 512 engines, and its first bottleneck.

    python -m benchmarks.fleet_scaling             # the tables of docs/scaling.md
    python -m benchmarks.fleet_scaling --figure docs/clusters.png

The clusters are those of `benchmarks/simulated_cluster.py`, which states which inputs are measured,
counted, from a data sheet or assumed. A generation is 64 prompts of 256 tokens per member and up
to 256 new tokens, in microbatches of 1,024 rows.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.simulated_cluster import (
    PER_ENGINE,
    Chance,
    Driver,
    Setting,
    on,
    simulated,
    traffic,
)
from benchmarks.simulated_cluster import (
    costs as setting_costs,
)
from benchmarks.simulated_fleet import Spent

ENGINES = (8, 16, 32, 64, 128, 256, 512)
PHASES = ("generate", "look", "tell", "apply", "agree")
COLORS = ("#4c78a8", "#b279a2", "#f58518", "#e45756", "#72b7b2")
REMEDIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("as it is", {}),
    ("the update in one kernel", {"fused": True}),
    ("digests on all cores of its GPUs", {"digest_threads": 0}),
    ("64 graders", {"graders": 64}),
    ("the driver at half its work", {"driver": Driver(receive=Driver().receive / 2)}),
    ("no look after generating", {"look": False}),
)
"""Each remedy is added to those before it."""
ALL = {name: value for _, change in REMEDIES[:4] for name, value in change.items()}
"""The first three remedies, which change neither the bits nor the guarantees of a run."""


def main() -> None:
    """Print the tables, and draw the figure if `--figure` is given."""
    parser = argparse.ArgumentParser(description="Simulate fleets of 8 to 512 engines.")
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--figure", type=Path, help="draw to this file")
    arguments = parser.parse_args()
    for table in (growth, with_population, remedies, stragglers, losses):
        print("\n".join(table(arguments.generations)), end="\n\n", flush=True)
    if arguments.figure:
        draw(arguments.figure, arguments.generations)


def growth(generations: int) -> Iterator[str]:
    """Yield the table of 4,096 members on 8 to 512 engines."""
    yield (
        f"| model | engines | GPUs | generation, s | against 8 | {' | '.join(PHASES)} "
        "| engines generate | driver works | traffic, MB | names, kB per member |"
    )
    yield "|" + "---|" * 14
    for model in PER_ENGINE:
        eight = 0.0
        for engines in ENGINES:
            setting = on(model, engines)
            spent = simulated(setting, generations)
            seconds = spent.wall / generations
            eight = eight or seconds
            yield line(
                *(model, engines, setting.case.gpus, f"{seconds:,.1f}", f"{eight / seconds:.1f}x"),
                *phases(spent, generations),
                *shares(setting, spent),
                *bytes_of(setting),
            )


def with_population(generations: int) -> Iterator[str]:
    """Yield the table of 64 members per engine, which are four microbatches."""
    yield (
        "| model | engines | members | remedies | generation, s | members/s | "
        f"{' | '.join(PHASES)} | engines generate | driver works | traffic, MB "
        "| names, kB per member |"
    )
    yield "|" + "---|" * 14
    for engines in ENGINES[::2]:
        for name, remedy in (("none", {}), ("the first three", ALL)):
            setting = replace(on("7B", engines, members=64 * engines), **remedy)
            spent = simulated(setting, generations)
            seconds = spent.wall / generations
            yield line(
                *("7B", engines, f"{setting.case.members:,}", name, f"{seconds:,.1f}"),
                f"{setting.case.members / seconds:.1f}",
                *phases(spent, generations),
                *shares(setting, spent),
                *bytes_of(setting),
            )


def remedies(generations: int) -> Iterator[str]:
    """Yield the table of 4,096 members with one remedy after another."""
    yield (
        f"| model | engines | | generation, s | {' | '.join(PHASES)} "
        "| engines generate | driver works |"
    )
    yield "|" + "---|" * 11
    for model, engines in (("7B", 64), ("7B", 512), ("72B", 64)):
        setting = on(model, engines)
        finer = replace(setting.case, rows=256)
        for name, change in (*REMEDIES, ("microbatches of 256 rows", {"case": finer})):
            setting = replace(setting, **change)
            spent = simulated(setting, generations)
            yield line(
                *(model, engines, name, f"{spent.wall / generations:,.1f}"),
                *phases(spent, generations),
                *shares(setting, spent),
            )


def stragglers(generations: int) -> Iterator[str]:
    """Yield the time that a quorum saves if some microbatches take four times as long."""
    yield (
        "| microbatches that stall | quorum | generation, s | generate | engines generate "
        "| members left out |"
    )
    yield "|---|---|---|---|---|---|"
    for stalled in (0.0, 0.01, 0.05):
        for quorum in (1.0, 0.95, 0.9):
            setting = replace(on("7B", 64), chance=Chance(stalled=stalled), quorum=quorum, **ALL)
            spent = simulated(setting, generations)
            case = setting.case
            microbatches = case.members * case.prompts // case.rows * generations
            yield line(
                *(f"{stalled:.0%}", f"{quorum:g}", f"{spent.wall / generations:,.1f}"),
                *(f"{spent.phases['generate'] / generations:.1f}", shares(setting, spent)[0]),
                f"{1 - spent.microbatches / microbatches:.1%}",
            )


def losses(generations: int) -> Iterator[str]:
    """Yield the cost of lost engines: at a published rate, and on preemptible machines."""
    yield (
        "| model | engines | hours between losses of a GPU | losses per hour | rebuild, s "
        "| all wait, s | generation, s | longer |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for model in ("7B", "72B"):
        for every in (0.0, 50_700.0, 100.0, 10.0):
            yield _lossy(model, every, 10 * generations)


def _lossy(model: str, every: float, generations: int) -> str:
    setting = replace(on(model, 64), **ALL)
    undisturbed = simulated(setting, generations).wall
    per_engine = PER_ENGINE[model]
    chance = replace(setting.chance, lost_every=every / per_engine)
    spent = simulated(replace(setting, chance=chance), generations)
    costs = setting_costs(setting)
    rate = 64 * per_engine / every if every else 0.0
    return line(
        *(model, 64, f"{every:,.0f}" if every else "never", f"{rate:.2f}"),
        *(f"{costs.rebuild:.0f}", f"{costs.resync:.0f}"),
        *(f"{spent.wall / generations:,.1f}", f"{spent.wall / undisturbed - 1:+.1%}"),
    )


def phases(spent: Spent, generations: int) -> list[str]:
    """Return the seconds of each phase of a generation."""
    return [f"{spent.phases[name] / generations:.1f}" for name in PHASES]


def shares(setting: Setting, spent: Spent) -> tuple[str, str]:
    """Return the shares of the time in which engines generate, and the driver works."""
    generating = spent.generating / setting.case.engines / spent.wall
    return f"{generating:.0%}", f"{spent.driver / spent.wall:.0%}"


def bytes_of(setting: Setting) -> tuple[str, str]:
    """Return the MB of a generation, and the kB per member without text."""
    names, everything = traffic(setting)
    return f"{everything / 1e6:,.0f}", f"{names / 1e3 / setting.case.members:.2f}"


def draw(path: Path, generations: int) -> None:
    """Draw the phases of a generation of 7B against the number of engines."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, title, remedy in ((left, "as it is", {}), (right, "three remedies", ALL)):
        below = [0.0] * len(ENGINES)
        found = [simulated(replace(on("7B", one), **remedy), generations) for one in ENGINES]
        for phase, color in zip(PHASES, COLORS, strict=True):
            heights = [spent.phases[phase] / generations for spent in found]
            axes.bar(range(len(ENGINES)), heights, bottom=below, color=color, label=phase)
            below = [one + more for one, more in zip(below, heights, strict=True)]
        axes.set_xticks(range(len(ENGINES)), [str(one) for one in ENGINES])
        axes.set_xlabel("engines")
        axes.set_title(f"7B, 4,096 members x 64 prompts: {title}", fontsize=9)
    left.set_ylabel("seconds of a generation (simulated)")
    right.legend(frameon=False)
    figure.savefig(path, dpi=110)


def line(*cells: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
