"""Simulated clusters of H200: time of evaluation, update and digest, with random delays and losses.

**No GPU was run.** The time of an engine follows from the counts of `benchmarks/scaling_out.py` and
the data sheet of an H200. The time of the driver was measured on a CPU
(`benchmarks/fleet_driver.py`). The phases are those of `benchmarks/simulated_fleet.py`. Random
delays are seeded.

    step t     = max((weights + keys and values of unfinished rows) / bandwidth,
                     their products / arithmetic)                                           (1)
    microbatch = products of the prompts / arithmetic + its steps, to the longest row       (2)
    digest     = max(numbers / threads, largest tensor) x 4 bytes / hashing
                 + numbers x 4 bytes / PCIe                                                 (3)
    rebuild    = start + serving weights / disk                                             (4)
    resync     = 2 x masters / disk + masters / network                                     (5)
    update     = that of `benchmarks/scaling_out.py`; or, in one kernel that keeps a tile of
                 the sum while it adds all directions in order, with the same bits:
                 2 x directions x numbers / (fp32 arithmetic / 2)
                 + 12 bytes x numbers / bandwidth                                           (6)

In (6), a multiply and an add are two operations, because a fused one would round differently.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Int

from benchmarks.scaling_out import BYTES, Case, Gpu, update
from benchmarks.shapes import QWEN
from benchmarks.simulated_fleet import Costs, SimulatedFleet, Spent, no_loss

MASTER = 4
"""Bytes of a master weight (fp32)."""


@dataclass(frozen=True)
class Host:
    """The host of a GPU, and its links.

    Attributes:
        fp32: operations per second outside tensor cores; a fused multiply-add counts as two (data
            sheet).
        hashing: bytes of SHA-256 per second on one core; measured on a processor with SHA
            instructions.
        cores: CPU cores per GPU: two processors of 56 cores for eight GPUs, as in the H200 systems
            of MLPerf Inference 4.1, which also have one PCIe 5.0 x16 and one NIC of 400 Gb/s per
            GPU.
        pcie: bytes per second; half of the 128 GB/s for both directions in the H200's data sheet.
        network: bytes per second of a NIC.
        disk: bytes per second. Assumed.
        start: seconds until a new engine begins to read weights. Assumed.
    """

    fp32: float = 67e12
    hashing: float = 1.8e9
    cores: int = 14
    pcie: float = 64e9
    network: float = 50e9
    disk: float = 5e9
    start: float = 30.0


@dataclass(frozen=True)
class Driver:
    """CPU seconds and bytes of the driver.

    Attributes:
        send: seconds per prompt of a microbatch (`benchmarks/fleet_driver.py`).
        receive: seconds per completion of 256 tokens: unpickling, validating, counting bytes,
            submitting to graders and collecting grades (`benchmarks/fleet_driver.py`).
        ask: seconds per job, on Ray (`benchmarks/fleet_layer.py`).
        travel: wall seconds of a message and its answer on Ray, on one machine.
        sent: bytes per prompt of a microbatch: 256 tokens of four letters, and their envelope.
        received: bytes per completion.
    """

    send: float = 4e-6
    receive: float = 41e-6
    ask: float = 0.65e-3
    travel: float = 1.2e-3
    sent: int = 1100
    received: int = 2100


@dataclass(frozen=True)
class Chance:
    """Random differences between microbatches; all values are assumed.

    Attributes:
        median: median length of completions, as a share of the limit.
        spread: standard deviation of the logarithm of the length.
        pace: standard deviation of the logarithm of the time of equal microbatches.
        stalled: share of microbatches that take `stall` times as long.
        lost_every: hours between two losses of one engine; 0 for no losses.
    """

    median: float = 0.4
    spread: float = 0.6
    pace: float = 0.05
    stalled: float = 0.0
    stall: float = 4.0
    lost_every: float = 0.0


@dataclass(frozen=True)
class Setting:
    """A cluster, a generation, and the settings of the fleet.

    Attributes:
        digest_threads: threads of an engine's digest; 0: all cores of its GPUs.
        look: whether digests are also compared after generating.
        graders: grader processes on the driver's host.
        grade: seconds of a grader per completion.
        fused: whether the update is one kernel, by (6).
    """

    case: Case
    digest_threads: int = 2
    look: bool = True
    graders: int = 8
    grade: float = 1e-3
    quorum: float = 1.0
    fused: bool = False
    chance: Chance = field(default_factory=Chance)
    driver: Driver = field(default_factory=Driver)
    host: Host = field(default_factory=Host)
    gpu: Gpu = field(default_factory=Gpu)


ENGINES = (8, 16, 32, 64, 128, 256, 512)
PER_ENGINE = {"1.5B": 1, "7B": 1, "72B": 8}
"""GPUs per engine."""


def on(model: str, engines: int, members: int = 4096) -> Setting:
    """Return the setting of a model with a number of engines."""
    per_engine = PER_ENGINE[model]
    return Setting(Case(QWEN[model], engines * per_engine, per_engine, members=members))


def simulated(setting: Setting, generations: int = 6, seed: int = 0) -> Spent:
    """Simulate some generations, and return where their time goes."""
    random = np.random.default_rng(seed)
    chance = setting.chance
    loses = partial(_loses, random, chance.lost_every * 3600) if chance.lost_every else no_loss
    fleet = SimulatedFleet(setting.case.engines, costs(setting), setting.quorum, loses)
    for _ in range(generations):
        fleet.generation(drawn(setting, random))
    return fleet.spent


def drawn(setting: Setting, random: np.random.Generator) -> list[Callable[[int], float]]:
    """Draw the seconds of each microbatch of a generation; they are the same on every engine."""
    case, chance = setting.case, setting.chance
    microbatches: list[Callable[[int], float]] = []
    for _ in range(case.members * case.prompts // case.rows):
        tokens = case.new_tokens * chance.median * random.lognormal(0.0, chance.spread, case.rows)
        lengths = np.clip(np.ceil(tokens), 1, case.new_tokens).astype(np.int64)
        pace = random.lognormal(0.0, chance.pace)
        stall = chance.stall if random.random() < chance.stalled else 1.0
        seconds = microbatch_seconds(case, lengths, setting.gpu) * pace * stall
        microbatches.append(partial(_alike, seconds))
    return microbatches


def _alike(seconds: float, _engine: int) -> float:
    return seconds


def _loses(
    random: np.random.Generator, every: float, begin: float, end: float, _engine: int
) -> float | None:
    after = random.exponential(every)
    return begin + after if after < end - begin else None


def microbatch_seconds(case: Case, lengths: Int[np.ndarray, " rows"], gpu: Gpu) -> float:
    """Return the seconds of generating one microbatch, by (1) and (2).

    Args:
        case: the model and its GPUs.
        lengths: tokens generated in each row.
        gpu: speed of a GPU.
    """
    of = case.shape
    rows = lengths.size - np.cumsum(np.bincount(lengths))[:-1]  # unfinished rows at each step
    steps = np.arange(1, rows.size + 1)
    bandwidth = gpu.bandwidth * gpu.share_of_bandwidth
    arithmetic = gpu.arithmetic * gpu.share_of_arithmetic
    kept = 2 * of.kv_width * of.layers * BYTES * (case.prompt_tokens + steps)
    read = ((of.linear + of.head) * BYTES + rows * kept) / bandwidth
    computed = 2 * rows * (of.linear + of.head) / arithmetic
    prefill = 2 * lengths.size * case.prompt_tokens * of.linear / arithmetic
    return float(prefill + np.maximum(read, computed).sum()) / case.per_engine


def costs(setting: Setting) -> Costs:
    """Return the durations of all actions except generating, by (3) to (6)."""
    case, driver, host = setting.case, setting.driver, setting.host
    masters = case.shape.numbers * MASTER
    digest = digest_seconds(setting)
    return Costs(
        send=driver.ask + driver.send * case.prompts,
        receive=driver.receive * case.rows,
        ask=driver.ask,
        travel=driver.travel,
        grade=setting.grade * case.rows / setting.graders,
        look=digest if setting.look else 0.0,
        update=update_seconds(setting),
        agree=digest,
        rebuild=host.start + case.shape.numbers * BYTES / host.disk,
        resync=2 * masters / host.disk + masters / (host.network * case.per_engine),
    )


def digest_seconds(setting: Setting) -> float:
    """Return the seconds in which an engine hashes its masters, by (3)."""
    case, host = setting.case, setting.host
    largest = max(case.shape.head, case.shape.hidden * case.shape.inner)
    threads = setting.digest_threads or host.cores * case.per_engine
    hashed = max(case.shape.numbers / threads, largest) * MASTER / host.hashing
    return hashed + case.shape.numbers * MASTER / (host.pcie * case.per_engine)


def update_seconds(setting: Setting) -> float:
    """Return the seconds in which an engine applies an update; by (6) if it is one kernel."""
    case, gpu = setting.case, setting.gpu
    if not setting.fused:
        return update(case, gpu)
    numbers = case.shape.linear / case.per_engine
    added = 2 * case.members / 2 * numbers / (setting.host.fp32 / 2 * gpu.share_of_arithmetic)
    return added + 12 * numbers / (gpu.bandwidth * gpu.share_of_bandwidth)


def traffic(setting: Setting) -> tuple[float, float]:
    """Return the bytes of a generation on the driver's network, without text and in total.

    Every engine gets an update of 9 bytes per pair of members (`scaling_out.network`). A microbatch
    takes a kilobyte, 60 bytes per member, and 15 bytes in addition to each completion (measured).
    """
    case, driver = setting.case, setting.driver
    completions = case.members * case.prompts
    microbatches = completions / case.rows
    updates = case.engines * (9 * case.members / 2 + 1000)
    names = updates + microbatches * 1000 + case.members * 60 + completions * 15
    text = microbatches * case.prompts * driver.sent + completions * (driver.received - 15)
    return names, names + text
