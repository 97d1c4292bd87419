"""Hostile texts for tests of graders: texts that perturbed models write, and worse ones.

`germline check` and the conformance tests grade them: each must be graded within the timeout.
"""

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
