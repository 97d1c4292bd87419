"""Members and updates as JSON text for other processes: seeds, coefficients and offsets.

Floats in JSON read back to the same bits; offsets are base64 of little-endian fp32. Reading creates
data only: no pickle crosses a network.
"""

import base64
import json
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import Float32

from germline.types import (
    MeanUpdate,
    Perturbation,
    SeedPerturbation,
    SigmaUpdate,
    StrategyState,
    Update,
    VectorPerturbation,
)


def write_members(members: dict[str, Perturbation | None]) -> str:
    """Write members by name; None is the center."""
    return json.dumps({name: _write_member(member) for name, member in members.items()})


def read_members(text: str) -> dict[str, Perturbation | None]:
    """Read what `write_members` wrote."""
    return {name: _read_member(values) for name, values in json.loads(text).items()}


def write_update(update: Update | MeanUpdate) -> str:
    """Write an update; a mean update with its offsets."""
    if isinstance(update, Update):
        return json.dumps(asdict(update))
    offsets = None if update.offsets is None else _encode_offsets(update.offsets)
    return json.dumps(
        {
            "generation": update.generation,
            "sigma": update.sigma,
            "utilities": update.utilities,
            "offsets": offsets,
        }
    )


def read_update(text: str) -> Update | MeanUpdate:
    """Read what `write_update` wrote."""
    values = json.loads(text)
    if "utilities" in values:
        offsets = values.pop("offsets")
        values["utilities"] = tuple(values["utilities"])
        return MeanUpdate(**values, offsets=None if offsets is None else _decode_offsets(offsets))
    sigma_update = values.pop("sigma_update")
    if sigma_update is not None:
        sigma_update["coefficients"] = tuple(sigma_update["coefficients"])
        sigma_update = SigmaUpdate(**sigma_update)
    values["coefficients"] = tuple(values["coefficients"])
    state = StrategyState(**values.pop("strategy_state"))
    return Update(**values, sigma_update=sigma_update, strategy_state=state)


def _write_member(member: Perturbation | None) -> dict[str, Any] | None:
    if member is None:
        return None
    if isinstance(member, SeedPerturbation):
        return asdict(member)
    offsets = _encode_offsets(member.offsets)
    return {"generation": member.generation, "index": member.index, "offsets": offsets}


def _read_member(values: dict[str, Any] | None) -> Perturbation | None:
    if values is None:
        return None
    if "offsets" in values:
        return VectorPerturbation(
            values["generation"], values["index"], _decode_offsets(values["offsets"])
        )
    return SeedPerturbation(**values)


def _encode_offsets(values: Float32[np.ndarray, " dimension"]) -> str:
    return base64.b64encode(values.astype("<f4", copy=False).tobytes()).decode("ascii")


def _decode_offsets(text: str) -> Float32[np.ndarray, " dimension"]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")
