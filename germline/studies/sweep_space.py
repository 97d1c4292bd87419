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
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from germline.config.base import as_override
from germline.config.config_files import read_file
from germline.types import GermlineError

SCALES = ("log", "linear", "int", "probe", "values")
STEPS = 4
"""Values of a range in a grid."""

DIGITS = 3
"""Significant digits of a number that is drawn from a range."""

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

    def spread(self, count: int) -> list[float]:
        """Return numbers at equal distances over the range."""
        low, high = self.values
        spread = np.geomspace if self.scale == "log" else np.linspace
        return [float(one) for one in spread(low, high, count)]

    @property
    def grid(self) -> list[Any]:
        """The values of a grid: the list, or some of the range."""
        if self.scale == "values":
            return [*self.values]
        if self.scale == "int":
            return sorted({*map(round, self.spread(STEPS))})
        return [*map(rounded, self.spread(STEPS))]


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

    @property
    def is_numeric(self) -> bool:
        """Whether every trial has two numbers or more, and nothing else."""
        numbers = [one for one in self.dimensions if one.scale != "values" and not one.when]
        return len(numbers) == len(self.dimensions) > 1

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
                ends = [rounded(units[one.name] * end) for end in one.values]
                others = {key: value for key, value in given[one.name].items() if key != "probe"}
                given[one.name] = {"log": ends, **others}
        return SweepSpace(given)

    def settings(self, draw: Callable[[Dimension], Any]) -> Settings:
        """Return the settings of a trial, with a value of every dimension whose condition holds."""
        chosen: Settings = {}
        for one in self.dimensions:
            if one.is_searched(chosen):
                chosen[one.name] = draw(one)
        return chosen

    def grid(self) -> list[Settings]:
        """Return all trials of a grid."""
        trials: dict[str, Settings] = {}
        for values in product(*(one.grid for one in self.dimensions)):
            by_name = dict(zip((one.name for one in self.dimensions), values, strict=True))
            found = self.settings(lambda one, by_name=by_name: by_name[one.name])  # type: ignore[misc]
            trials.setdefault(json.dumps(found, sort_keys=True), found)
        return [*trials.values()]

    def corners(self) -> Iterator[Settings]:
        """Yield trials in which every value of a list and every end of a range occurs."""
        for varied in self.dimensions:
            for value in varied.values:
                fixed = {name: values[0] for name, values in varied.when.items()}
                fixed[varied.name] = value

                def draw(one: Dimension, fixed: Settings = fixed) -> Any:
                    return fixed.get(one.name, one.values[0])

                yield self.settings(draw)


def overrides_of(settings: Settings) -> list[str]:
    """Return the settings of a trial as overrides."""
    return [as_override(name, value) for name, value in settings.items()]


def rounded(value: float) -> float:
    """Round a number to three significant digits."""
    return float(f"{value:.{DIGITS}g}")


def _dimension(name: str, entry: object) -> Dimension:
    given = {"values": entry} if isinstance(entry, list) else entry
    scales = [key for key in given if key != "when"] if isinstance(given, Mapping) else []
    when = given.get("when") or {} if isinstance(given, Mapping) else {}
    is_known = len(scales) == 1 and scales[0] in SCALES
    if not isinstance(given, Mapping) or not isinstance(when, Mapping) or not is_known:
        raise GermlineError(
            f"sweep: {name}: {entry!r} is no range: give a list of values, or one of {{log: [a, "
            "b]}, {linear: [a, b]}, {int: [a, b]}, {probe: [a, b]} and {values: [...]}, perhaps "
            "with {when: {OTHER.SETTING: VALUE}}; a single value is written after the config, as "
            "KEY=VALUE"
        )
    values = given[scales[0]]
    if mistake := _mistake(scales[0], values):
        raise GermlineError(f"sweep: {name}: {scales[0]}={values!r} {mistake}")
    conditions = {
        other: tuple(some) if isinstance(some, list) else (some,) for other, some in when.items()
    }
    return Dimension(name, scales[0], tuple(values), conditions)


def _mistake(scale: str, values: object) -> str:
    """Return what is wrong with the values of a list, or the ends of a range; empty if nothing."""
    texts = {json.dumps(one, sort_keys=True) for one in values} if isinstance(values, list) else ()
    if not isinstance(values, list) or len(texts) < max(2, len(values)):
        return "needs two values or more, each once"
    if scale == "values":
        return ""
    types = {int} if scale == "int" else {int, float}
    if len(values) != 2 or {type(one) for one in values} - types:
        return f"needs two {'whole numbers' if scale == 'int' else 'numbers'}, [low, high]"
    if not values[0] < values[1] or not math.isfinite(values[1] - values[0]):
        return "must rise from the first to the second"
    return "must begin above 0; use linear" if scale in ("log", "probe") and values[0] <= 0 else ""
