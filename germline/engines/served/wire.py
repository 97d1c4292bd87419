"""Members and updates as text, for engines elsewhere: seeds, coefficients and coordinates travel.

JSON, whose floats read back to the same bits; coordinates are base64 of little-endian fp32. What is
read here is data and nothing else: no pickle crosses a network.
"""

import base64
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float32

from germline.types import Coordinates, Move, Perturbation, Seeded, Stretch, Update


def write_members(members: dict[str, Perturbation | None]) -> str:
    """Write members by name; None is the centre."""
    return json.dumps({name: _member(member) for name, member in members.items()})


def read_members(text: str) -> dict[str, Perturbation | None]:
    """Read what `write_members` wrote."""
    return {name: _as_member(values) for name, values in json.loads(text).items()}


def write_update(update: Update | Move) -> str:
    """Write an update; of a move, where it leads."""
    if isinstance(update, Update):
        return json.dumps(asdict(update))
    offsets = None if update.offsets is None else _numbers(update.offsets)
    return json.dumps(
        {
            "generation": update.generation,
            "sigma": update.sigma,
            "utilities": update.utilities,
            "offsets": offsets,
        }
    )


def read_update(text: str) -> Update | Move:
    """Read what `write_update` wrote."""
    values = json.loads(text)
    if "utilities" in values:
        offsets = values.pop("offsets")
        values["utilities"] = tuple(values["utilities"])
        return Move(**values, offsets=None if offsets is None else _as_numbers(offsets))
    stretch = values.pop("stretch")
    if stretch is not None:
        stretch["coefficients"] = tuple(stretch["coefficients"])
        stretch = Stretch(**stretch)
    for name in ("coefficients", "told"):
        values[name] = tuple(values[name])
    values["choices"] = tuple(map(tuple, values["choices"]))
    return Update(**values, stretch=stretch)


def _member(member: Perturbation | None) -> dict[str, Any] | None:
    if member is None:
        return None
    if isinstance(member, Seeded):
        return asdict(member)
    offsets = _numbers(member.offsets)
    return {"generation": member.generation, "index": member.index, "offsets": offsets}


def _as_member(values: dict[str, Any] | None) -> Perturbation | None:
    if values is None:
        return None
    if "offsets" in values:
        return Coordinates(values["generation"], values["index"], _as_numbers(values["offsets"]))
    return Seeded(**values)


def _numbers(values: Float32[np.ndarray, " dimension"]) -> str:
    return base64.b64encode(values.astype("<f4", copy=False).tobytes()).decode("ascii")


def _as_numbers(text: str) -> Float32[np.ndarray, " dimension"]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")
