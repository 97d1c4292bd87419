"""The toy engine: no more tokens than its completions have."""

import pytest

from germline.engines import sampling, toy
from germline.engines.toy import ToyEngine
from germline.optimizers import Sgd
from germline.types import Decoding, Example

EXAMPLES = [Example(number, text, "", chat=False) for number, text in enumerate(("!#", "b", "xyz"))]
LONGEST = 48


def sampled(*stop):
    return Decoding(LONGEST, temperature=1.0, stop=stop, noise_seed=1, noise_generation=2)


def generated(decoding, monkeypatch):
    """Return the completions, and how many tokens were chosen for each."""
    chosen = []
    choose_tokens = sampling.choose_tokens

    def counted(*arguments):
        chosen.append(choose_tokens(*arguments))
        return chosen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(toy, "choose_tokens", counted)
        (row,) = ToyEngine(None, Sgd(0.0)).generate([None], EXAMPLES, decoding)
    return row, len(chosen)


def in_every_text(whole, size):
    """Return strings that begin one after another in every completion, `size` characters each."""
    return [completion.text[place : place + size] for completion in whole for place in (4, 5)]


@pytest.mark.parametrize("kind", ["letters", "words", "overlapping", "none"])
def test_generation_ends_where_no_completion_can_change(kind, monkeypatch):
    whole, steps = generated(sampled(), monkeypatch)
    assert steps == max(len(one.tokens) for one in whole) > 30
    stop = {
        "letters": list("etaoins "),
        "words": in_every_text(whole, 3),
        # The longer string begins first and ends last.
        "overlapping": [one.text[5] + one.text[6] for one in whole]
        + [one.text[4:9] for one in whole],
        "none": ["no such text"],
    }[kind]
    decoding = sampled(*stop)
    stopped, fewer = generated(decoding, monkeypatch)
    assert stopped == [toy._completion(one.tokens, one.prompt_tokens, decoding) for one in whole]
    if kind == "overlapping":
        assert [one.text for one in stopped] == [one.text[:4] for one in whole]
    assert fewer < steps - 10 if kind != "none" else fewer == steps
