"""Hostile texts for tests of graders: texts that perturbed models write, and worse ones.

`germline check` and the conformance tests grade them: each must be graded within the timeout.
"""

from collections.abc import Sequence

import numpy as np

LONG = 100_000

HOSTILE: tuple[str, ...] = (
    " ",
    "\x00\x1b[2J\r\n",
    "\ud800",
    "\u202e\u0663\ufeff",
    "NaN",
    "-1e999999999",
    "9**9**9",
    "<answer>9**9**9</answer>",
    " </think>\n<answer>__import__('os').abort()</answer>",
    "<answer>" * LONG,
    "<answer>" + "(" * LONG + "1" + ")" * LONG + "</answer>",
    "<answer>" + "-" * LONG + "1</answer>",
    "[" * LONG,
    '{"a":' * LONG,
    "9" * LONG,
    "1," * LONG,
    "a" * 10 * LONG,
    "a" * 30 + "!",  # the pattern (a+)+$ takes exponential time on it
    "{{7*7}} %s %n ${HOME} '; drop table runs; --",
)

_SCRAPS: tuple[str, ...] = (
    *("<answer>", "</answer>", "<think>", "</think>", "</think>\n<answer>", "####", "\\boxed{"),
    *("9**9**9", "(((", ")))", "[[[", "{", "}", '"', "'", "\\", ",", "-", "+", "*", "/", "//"),
    *("0", "7", "3.14", "-0", "1e9999", ".5", "1,000", "\u0663", "\u00b2", "\uff13", "NaN", "null"),
    *("true", "Infinity", '{"a": 1}', "(a+)+$", ".*.*.*=", "aaaaaaaaaaaaaaaaaaaaaaaa!"),
    *("\x00", "\x07", "\x1b[31m", "\r", "\n", "\t", "\u2028", "\u202e", "\ufeff", "\ud800"),
    *("\udfff", "e\u0301" * 9, "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u0130"),
    *("\u00df", "the answer is 8."),
)


def fuzz_text(count: int, seed: int = 0) -> Sequence[str]:
    """Mix pieces of tags, numbers, code and rare characters; the same texts for the same seed."""
    generator = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        scraps = generator.choice(_SCRAPS, int(generator.integers(1, 12)))
        repeats = generator.choice([1, 1, 1, 2, 50, 2000], len(scraps))
        texts.append("".join(str(s) * int(n) for s, n in zip(scraps, repeats, strict=True)))
    return texts
