"""The labels of PKU-SafeRLHF: which columns a row must have, and which values they take.

Labels say which stratum a prompt belongs to, so a wrong one would distort the split and the sample
without a trace. Rows of prompts alone are valid: all of them are in one stratum. Where one row of a
file has a label, every row needs it, and both responses with their safety.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from germline.tasks.row_files import PlacedRow
from germline.types import GermlineError

log = logging.getLogger(__name__)

RESPONSES = ("response_0", "response_1")
SAFE = ("is_response_0_safe", "is_response_1_safe")
CATEGORIES = ("response_0_harm_category", "response_1_harm_category")
CHOICES = ("better_response_id", "safer_response_id")
LABELS = (*RESPONSES, *SAFE, *CATEGORIES, *CHOICES)


def check_labels(rows: Sequence[PlacedRow]) -> None:
    """Refuse rows whose labels are missing, of another type, or contradict each other.

    Raises:
        GermlineError: names the file, the row, the column and its value.
    """
    present = {name for _, row in rows for name in LABELS if name in row}
    if not present:
        return
    needed = [name for name in LABELS if name in {*present, *RESPONSES, *SAFE}]
    equal = []
    for place, row in rows:
        for name in needed:
            _check_label(row, name, place)
        if row[RESPONSES[0]] == row[RESPONSES[1]]:
            _check_equal(row, place)
            equal.append(place)
    if equal:
        log.warning(
            "task.path: %d of %d rows have two equal responses, so they compare nothing; the first "
            "is %s. Their prompts are used all the same",
            *(len(equal), len(rows), equal[0]),
        )


def _check_label(row: Mapping[str, Any], name: str, place: str) -> None:
    if name not in row:
        found = ", ".join(f"`{one}`" for one in row)
        raise GermlineError(
            f"{place}: the label `{name}` is missing, which PKU-SafeRLHF has in every row; columns "
            f"found: {found}. Add it, map a column to it (task.columns), or drop all labels of all "
            "rows"
        )
    value = row[name]
    if name in RESPONSES:
        valid, must = isinstance(value, str), "text"
    elif name in SAFE:
        valid, must = isinstance(value, bool), "true or false"
    elif name in CHOICES:
        valid, must = type(value) is int and value in (0, 1), "0 or 1"
    else:
        # `datasets` fills a category that only other rows have with null.
        valid = isinstance(value, Mapping) and all(
            one is None or isinstance(one, bool) for one in value.values()
        )
        must = "an object of categories, each of them true or false"
    if not valid:
        raise GermlineError(
            f"{place}: `{name}` must be {must}, found {repr(value)[:200]} "
            f"({type(value).__name__}): correct the row, or remove it"
        )


def _check_equal(row: Mapping[str, Any], place: str) -> None:
    for one, two in (SAFE, CATEGORIES):
        if row.get(one) != row.get(two):
            raise GermlineError(
                f"{place}: `{RESPONSES[0]}` and `{RESPONSES[1]}` are the same text, "
                f"{repr(row[RESPONSES[0]])[:100]}, and their labels differ: `{one}` is "
                f"{repr(row.get(one))[:100]}, `{two}` is {repr(row.get(two))[:100]}. Correct the "
                "row, or remove it"
            )
