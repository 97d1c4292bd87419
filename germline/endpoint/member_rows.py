"""Generate completions of rows that have a member and a prompt of their own, in few batches.

Members with the same prompts are a grid, which `Engine.generate` takes. Otherwise the rows are the
first turns of conversations, which may differ between members (`Engine.converse`). That batch is a
rectangle as wide as the longest list of rows of a member, so members with many rows and members
with few have batches of their own.
"""

from collections.abc import Sequence

from germline.protocols import Engine
from germline.types import Completion, Decoding, Example, Perturbation

Row = tuple[Perturbation | None, Example]
Places = list[list[int]]
"""The rows of some members, `[members][rows]`, by their place in the list of all rows."""


def generate_rows(engine: Engine, rows: Sequence[Row], decoding: Decoding) -> list[Completion]:
    """Return the completion of each row's example by the row's member."""
    of_member: dict[Perturbation | None, list[int]] = {}
    for place, (member, _) in enumerate(rows):
        of_member.setdefault(member, []).append(place)
    grids: dict[tuple[object, ...], Places] = {}
    for places in of_member.values():
        ordered = sorted(places, key=lambda place: _key(rows[place][1]))
        grids.setdefault(tuple(_key(rows[place][1]) for place in ordered), []).append(ordered)
    completions: dict[int, Completion] = {}
    if len(grids) == 1:
        completions = _of_grid(engine, rows, next(iter(grids.values())), decoding)
    else:
        for ragged in _of_similar_length(list(of_member.values())):
            completions |= _of_conversations(engine, rows, ragged, decoding)
    return [completions[place] for place in range(len(rows))]


def _of_grid(
    engine: Engine, rows: Sequence[Row], grid: Places, decoding: Decoding
) -> dict[int, Completion]:
    """Generate for members with the same examples."""
    members = [rows[places[0]][0] for places in grid]
    generated = engine.generate(members, [rows[place][1] for place in grid[0]], decoding)
    return {
        place: completion
        for places, written in zip(grid, generated, strict=True)
        for place, completion in zip(places, written, strict=True)
    }


def _of_conversations(
    engine: Engine, rows: Sequence[Row], ragged: Places, decoding: Decoding
) -> dict[int, Completion]:
    """Generate for members with different examples: one turn of conversations."""
    completions: dict[int, Completion] = {}

    def end(
        places: Sequence[tuple[int, int]], written: Sequence[Completion]
    ) -> Sequence[str | None]:
        for (member, number), completion in zip(places, written, strict=True):
            completions[ragged[member][number]] = completion
        return [None] * len(places)

    members = [rows[places[0]][0] for places in ragged]
    prompts = [[rows[place][1] for place in places] for places in ragged]
    engine.converse(members, prompts, decoding, end)
    return completions


def _of_similar_length(lists: Places) -> list[Places]:
    """Group the rows of members so that the longest list of a group is not twice the shortest."""
    groups: dict[int, Places] = {}
    for places in lists:
        groups.setdefault(len(places).bit_length(), []).append(places)
    return list(groups.values())


def _key(example: Example) -> tuple[object, ...]:
    """Return what a completion of the example depends on."""
    return (
        example.token_ids,
        example.prompt,
        example.chat,
        example.context,
        example.index,
        example.sample,
    )
