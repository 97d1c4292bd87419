"""Settings that run directories of earlier versions lack, as those versions had them.

A new setting does nothing by default, with the exceptions here: their defaults are better than what
was done before, but change the last bits of an evaluation. A run goes on as it began.
"""

from collections.abc import Mapping
from typing import Any

ENGINE: dict[str, dict[str, object]] = {"inprocess": {"stacked": 1}}
"""Kind of engine -> what it did before it could be asked to do otherwise."""


def as_it_ran(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run directory with what went without saying when it was written."""
    engine = recorded.get("engine")
    if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
        return {**recorded, "engine": {**ENGINE.get(engine["kind"], {}), **engine}}
    return dict(recorded)
