"""The space of a sweep: values of settings that are searched, from a YAML file.

    strategy.sigma: {log: [0.001, 0.1]}               # also {linear: [0, 1]} and {int: [2, 8]}
    strategy.learning_rate: {probe: [0.3, 3]}         # in units of what `germline probe` finds
    method.kind: [es, zo_grpo]                        # values
    method.group_size: {int: [2, 8], when: {method.kind: zo_grpo}}
    shaping: {values: [z_score, centered_ranks], when: {method.kind: es}}

A setting with `when` is searched only in trials whose other settings have such a value.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from germline.config.base import as_override
from germline.config.config_files import read_file
from germline.types import GermlineError

SCALES = ("log", "linear", "int", "probe", "values")
STEPS = 4
"""Values of a range in a grid, and on the axis of a heat map."""

DIGITS = 3
"""Significant digits of a number that is drawn from a range."""

TINY = 1e-12
"""Stands for 0 among the logarithms of a list of numbers."""

Settings = dict[str, Any]
"""Setting -> value of a trial."""


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched.

    Attributes:
        scale: `log`, `linear` or `int` for a range, `probe` for one whose unit is not known yet,
            and `values` for a list.
        values: the two ends of a range, or the list.
        when: other setting -> values with which this one is searched.
    """

    name: str
    scale: str
    values: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]]

    def is_searched(self, settings: Settings) -> bool:
        """Whether the condition holds for the settings of a trial so far."""
        return all(settings.get(name) in values for name, values in self.when.items())

    @property
    def grid(self) -> list[Any]:
        """The values of a grid: the list, or some of the range at equal distances."""
        if self.scale == "values":
            return [*self.values]
        (low, high), spread = self.values, np.geomspace if self.scale == "log" else np.linspace
        numbers = spread(low, high, STEPS).tolist()
        return sorted({*map(round if self.scale == "int" else rounded, numbers)})

    def share(self, settings: Mapping[str, Any]) -> float | None:
        """Return how far the value of a trial is along the values, from 0 to 1; None without one.

        A number between those of a list counts as the nearest one.
        """
        value, places = settings.get(self.name), len(self.values) - 1
        if value in self.values:
            return self.values.index(value) / places
        are_numbers = all(isinstance(one, int | float) for one in (value, *self.values))
        if not are_numbers or not min(self.values) <= value <= max(self.values):
            return None
        is_log = self.scale in ("log", "values")
        sizes = np.array([*self.values, value], dtype=float)
        sizes = np.log(np.maximum(sizes, TINY)) if is_log else sizes
        if self.scale == "values":
            return int(np.argmin(np.abs(sizes[:-1] - sizes[-1]))) / places
        return float((sizes[-1] - sizes[0]) / (sizes[1] - sizes[0]))

    def place(self, settings: Mapping[str, Any]) -> int | None:
        """Return the place in `grid` that is nearest to the value of a trial; None without one."""
        share = self.share(settings)
        return None if share is None else round(share * (len(self.grid) - 1))


class SweepSpace:
    """The dimensions of a sweep; those with a condition come after those that it names.

    Args:
        given: the space, as the file has it.

    Raises:
        GermlineError: it is empty, a range or a list has a single value, or an entry is no range.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        if not given:
            raise GermlineError(
                "sweep: the space is empty: name settings with their ranges, such as "
                "`strategy.sigma: {log: [0.001, 0.1]}`"
            )
        self.given = dict(given)
        dimensions = [_dimension(name, entry) for name, entry in given.items()]
        # A kind first: the other settings of its section depend on it.
        dimensions.sort(key=lambda one: (bool(one.when), not one.name.endswith("kind")))
        known: set[str] = set()
        for one in dimensions:
            if unknown := one.when.keys() - known:
                raise GermlineError(
                    f"sweep: {one.name}: `when` names {min(unknown)}, and the settings searched "
                    f"before are {', '.join(sorted(known)) or 'none'}"
                )
            known.add(one.name)
        self.dimensions = tuple(dimensions)

    @classmethod
    def read(cls, file: Path) -> "SweepSpace":
        """Read a space file."""
        return cls(read_file(file, "sweep --over"))

    @property
    def needs_probe(self) -> bool:
        """Whether a range is in a unit that `germline probe` measures."""
        return any(one.scale == "probe" for one in self.dimensions)

    def in_units(self, units: Mapping[str, float]) -> "SweepSpace":
        """Return the space with `probe` ranges in the unit of their settings."""
        given = dict(self.given)
        for one in self.dimensions:
            if one.scale == "probe":
                if one.name not in units:
                    raise GermlineError(
                        f"sweep: {one.name}: a range in units of the probe is for "
                        f"{' and '.join(units)}: use log or linear"
                    )
                others = {key: value for key, value in given[one.name].items() if key != "probe"}
                ends = [rounded(units[one.name] * end) for end in one.values]
                given[one.name] = {"log": ends, **others}
        return SweepSpace(given)

    def settings(self, draw: Callable[[Dimension], Any], fixed: Settings | None = None) -> Settings:
        """Return the settings of a trial: fixed ones, else drawn, where their condition holds."""
        chosen: Settings = {}
        given = fixed or {}
        for one in self.dimensions:
            if one.is_searched(chosen):
                chosen[one.name] = given[one.name] if one.name in given else draw(one)
        return chosen

    def grid(self) -> list[Settings]:
        """Return all trials of a grid."""
        trials: list[Settings] = [{}]
        for one in self.dimensions:
            trials = [
                trial | more
                for trial in trials
                for more in [{one.name: value} for value in one.grid if one.is_searched(trial)]
                or [{}]
            ]
        return trials

    def corners(self) -> Iterator[Settings]:
        """Yield trials in which every value of a list and every end of a range occurs."""
        for varied in self.dimensions:
            condition = {name: values[0] for name, values in varied.when.items()}
            for value in varied.values:
                fixed = condition | {varied.name: value}
                yield self.settings(lambda one: one.values[0], fixed)


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings of a trial as overrides."""
    return [as_override(name, value) for name, value in settings.items()]


def rounded(value: float) -> float:
    """Round a number to three significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _dimension(name: str, entry: object) -> Dimension:
    given = {"values": entry} if isinstance(entry, list) else entry
    scales = [key for key in given if key != "when"] if isinstance(given, Mapping) else []
    if isinstance(given, Mapping) and len(scales) == 1 and scales[0] in SCALES:
        (scale,), values, when = scales, given[scales[0]], given.get("when") or {}
        if _is_range(scale, values) and isinstance(when, Mapping):
            conditions = {
                other: tuple(some) if isinstance(some, list) else (some,)
                for other, some in when.items()
            }
            return Dimension(name, scale, tuple(values), conditions)
    raise GermlineError(
        f"sweep: {name}: {entry!r} is no range: give a list of two values or more, each once, or "
        "one of {log: [a, b]}, {linear: [a, b]}, {int: [a, b]}, {probe: [a, b]} and {values: "
        "[...]}, with a below b, whole numbers of int, and a above 0 of log and probe, perhaps "
        "with {when: {OTHER.SETTING: VALUE}}; a single value is written after the config, as "
        "KEY=VALUE"
    )


def _is_range(scale: str, values: object) -> bool:
    """Whether these can be the values of a list, or the ends of a range."""
    texts = {json.dumps(one, sort_keys=True) for one in values} if isinstance(values, list) else ()
    if not isinstance(values, list) or len(texts) < max(2, len(values)):
        return False
    if scale == "values":
        return True
    numbers = {int} if scale == "int" else {int, float}
    if len(values) != 2 or {type(one) for one in values} - numbers:
        return False
    is_above = values[0] > 0 or scale not in ("log", "probe")
    return is_above and values[0] < values[1] and math.isfinite(values[1] - values[0])
