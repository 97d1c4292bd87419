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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from germline.config.base import as_override
from germline.config.config_files import read_file
from germline.types import GermlineError

LARGEST = 2.0**53
"""Number up to which floats hold every whole number, so that any sampler can propose them."""

STEPS = 4
"""Values of a range in a grid, and on the axis of a heat map."""


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
    when: Mapping[str, Sequence[Any]]

    def is_searched(self, settings: Mapping[str, Any]) -> bool:
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

        A number between those of a list counts as the nearest one, by their ratio.
        """
        value, values = settings.get(self.name, ...), self.values
        if value in values:
            return values.index(value) / (len(values) - 1)
        are_numbers = all(isinstance(one, int | float) for one in (value, *values))
        if not are_numbers or not min(values) < value < max(values):
            return None
        if self.scale == "values":
            nearest = min(values, key=lambda one: abs(one - value) / (abs(one) + abs(value)))
            return self.share({self.name: nearest})
        low, high, at = (math.log(one) if self.scale == "log" else one for one in (*values, value))
        return (at - low) / (high - low)

    def place(self, settings: Mapping[str, Any]) -> int | None:
        """Return the place in `grid` that is nearest to the value of a trial; None without one."""
        share = self.share(settings)
        return None if share is None else round(share * (len(self.grid) - 1))


class SweepSpace:
    """The dimensions of a sweep; those with a condition come after those that it names.

    Args:
        given: the space, or its file.

    Raises:
        GermlineError: it is empty, a range or a list has a single value, or an entry is no range.
    """

    def __init__(self, given: Mapping[str, Any] | Path | str) -> None:
        if not isinstance(given, Mapping):
            given = read_file(Path(given), "sweep --over")
        if not given:
            raise GermlineError(
                "sweep: the space is empty: name settings with their ranges, such as "
                "`strategy.sigma: {log: [0.001, 0.1]}`"
            )
        self.given = dict(given)
        self.dimensions = [_dimension(str(name), entry) for name, entry in given.items()]
        # A kind first: the other settings of its section depend on it.
        self.dimensions.sort(key=lambda one: (bool(one.when), not one.name.endswith("kind")))
        for place, one in enumerate(self.dimensions):
            known = {other.name: other.grid for other in self.dimensions[:place]}
            for name, values in one.when.items():
                if not values or any(value not in known.get(name, ()) for value in values):
                    raise GermlineError(
                        f"sweep: {one.name}: `when` asks for {name}={values}, and the lists that "
                        f"are searched before are {known or 'none'}"
                    )

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
                ends = [rounded(units[one.name] * end) for end in one.values]
                given[one.name] = {"log": ends, "when": one.when}
        return SweepSpace(given)

    def settings(self, draw: Callable[[Dimension], Any]) -> dict[str, Any]:
        """Return the settings of a trial, drawn one by one, where their condition holds."""
        chosen: dict[str, Any] = {}
        for one in self.dimensions:
            if one.is_searched(chosen):
                chosen[one.name] = draw(one)
        return chosen

    def grid(self) -> list[dict[str, Any]]:
        """Return all trials of a grid."""
        trials: list[dict[str, Any]] = [{}]
        for one in self.dimensions:
            choices = [{one.name: value} for value in one.grid]
            trials = [
                trial | more
                for trial in trials
                for more in (choices if one.is_searched(trial) else [{}])
            ]
        return trials

    def corners(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each setting with trials of all its values in a grid, the others at their first."""
        for varied in self.dimensions:
            fixed = {name: values[0] for name, values in varied.when.items()}
            for value in varied.grid:
                given = {**fixed, varied.name: value}
                yield varied.name, self.settings(lambda one: given.get(one.name, one.values[0]))  # noqa: B023


def overrides_of(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings of a trial as overrides."""
    return [as_override(name, value) for name, value in settings.items()]


def rounded(value: float) -> float:
    """Round a number to three significant digits."""
    return float(f"{value:.3g}")


def _dimension(name: str, entry: object) -> Dimension:
    given: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {"values": entry}
    when = given.pop("when", {})
    scale, values = next(iter(given.items()), ("", ()))
    if len(given) == 1 and _is_range(scale, values) and isinstance(when, Mapping):
        conditions = {key: some if isinstance(some, list) else [some] for key, some in when.items()}
        ends = map(rounded, values) if scale in ("log", "linear") else values
        return Dimension(name, scale, tuple(ends), conditions)
    raise GermlineError(
        f"sweep: {name}: {entry!r} is no range: give a list of two values or more, each once, or "
        "one of {log: [a, b]}, {linear: [a, b]}, {int: [a, b]}, {probe: [a, b]} and {values: [...]}"
        ", a below b, b up to 2^53, a above 0 of log and probe, whole numbers of int, perhaps with "
        "{when: {OTHER.SETTING: VALUE}}; a single value is written after the config, as KEY=VALUE"
    )


def _is_range(scale: str, values: Any) -> bool:
    """Whether these can be the values of a list, or the ends of a range."""
    if scale not in ("log", "linear", "int", "probe", "values") or not isinstance(values, list):
        return False
    if scale == "values":
        return len({json.dumps(one, sort_keys=True) for one in values}) == len(values) > 1
    numbers = {int} if scale == "int" else {int, float}
    if len(values) != 2 or {*map(type, values)} - numbers or max(map(abs, values)) > LARGEST:
        return False
    low, high = values if scale == "int" else map(rounded, values)
    return low < high and (low > 0 or scale not in ("log", "probe"))
