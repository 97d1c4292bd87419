"""Grade by length: the difference in characters between the completion and the gold answer.

The reward of the conciseness experiment of Qiu et al. 2025 (arXiv 2509.24372): R =
-|len(completion) - len(answer)|, in characters, of the completion alone, content ignored.

Deviation: differences beyond `LIMIT` count as `LIMIT`. Published scores are normalized as (R +
2000) / 2001, so 2000 is the worst value there too, and a failed grading has a floor.

Known limit: any text of the right length earns the full reward.
"""

from collections.abc import Mapping

from germline.example import Example

LIMIT = 2000


def grade_length(text: str, example: Example) -> Mapping[str, float]:
    """Return the parts `length` (minus the difference) and `length_difference`, in characters."""
    difference = float(min(abs(len(text) - len(example.answer)), LIMIT))
    return {"length": -difference, "length_difference": difference}
