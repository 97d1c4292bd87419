"""The members of a population that is being evaluated, as an endpoint offers them by name."""

from collections.abc import Mapping, Sequence

from germline.endpoint.http_app import RequestError
from germline.endpoint.named_weights import SelectedWeights
from germline.protocols import Engine
from germline.types import Perturbation


class MemberWeights:
    """An engine whose center does not change, and its members.

    Args:
        engine: belongs to a training run, which closes it.
        members: by name; None is the center.
    """

    engine_kind = "of this run"

    def __init__(self, engine: Engine, members: Mapping[str, Perturbation | None]) -> None:
        self.engine = engine
        self._members = members

    def names(self) -> Sequence[str]:
        """Return the names of the members, or of the center."""
        return list(self._members)

    def select(self, name: str) -> SelectedWeights:
        """Return the weights of a name; it stands for the digest, which would take time.

        Raises:
            RequestError: there are none.
        """
        if name not in self._members:
            first, *rest = self._members
            known = f"{first} to {rest[-1]}" if rest else first
            raise RequestError(
                404,
                f"the model {name[:100]!r} does not exist; this server has {known}",
                param="model",
                code="model_not_found",
            )
        return SelectedWeights(-1, self._members[name], name)

    def load(self, selected: SelectedWeights) -> None:
        """Do nothing: the engine has the center."""

    def close(self) -> None:
        """Leave the engine to the run."""
