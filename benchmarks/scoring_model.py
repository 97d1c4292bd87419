"""A model of the time of a generation on one 80 GB GPU: members that generate, or that score.

    python -m benchmarks.scoring_model        # the table of docs/scaling.md

Nothing here is measured. Products take 2 operations per weight and token, a decode step reads the
weights once and the keys and values of its rows; the GPU is that of `benchmarks.gpu_model`.
Generating: `es` has members x examples rows, `zo_grpo` GROUP x examples rows of the center, in
batches of as many rows as keys and values have room for. Scoring: every member reads ROWS
completions and the prompts of ROWS / GROUP + 1 examples, at the arithmetic's speed.
"""

from benchmarks.gpu_model import Gpu
from benchmarks.shapes import QWEN, Shape

MEMBERS, EXAMPLES, GROUP, ROWS = 128, 32, 8, 16
TEXTS = {"short": (100, 16), "reasoning": (150, 512), "long prompt": (2000, 16)}
"""Tokens of a prompt and of a completion."""
ROOM = 40e9
"""Bytes for keys and values."""
MOST_ROWS = 1024


def main() -> None:
    """Print the table."""
    gpu = Gpu()
    print(
        "| model | texts | prompt, completion | `es`: read, decode, s | steps | `zo_grpo`: read, "
        "decode, score, s | steps | `es` / `zo_grpo` |"
    )
    print("|" + "---|" * 8)
    for name in ("0.5B", "7B"):
        for texts, (prompt, completion) in TEXTS.items():
            es, es_steps = generated(QWEN[name], MEMBERS, EXAMPLES, prompt, completion, gpu)
            zo, zo_steps = generated(QWEN[name], 1, EXAMPLES * GROUP, prompt, completion, gpu)
            zo[0] /= GROUP  # samples of a prompt share its reading
            read = (ROWS // GROUP + 1) * prompt + ROWS * completion
            score = MEMBERS * read * products(QWEN[name], gpu)
            print(
                f"| {name} | {texts} | {prompt}, {completion} | {es[0]:.2f}, {es[1]:.2f} "
                f"| {es_steps} | {zo[0]:.2f}, {zo[1]:.2f}, {score:.2f} | {zo_steps} "
                f"| {sum(es) / (sum(zo) + score):.1f} |"
            )


def products(shape: Shape, gpu: Gpu) -> float:
    """Return the seconds that the products of a token take in a large batch."""
    return 2 * (shape.linear + shape.head) / gpu.arithmetic


def generated(
    shape: Shape, members: int, examples: int, prompt: int, completion: int, gpu: Gpu
) -> tuple[list[float], int]:
    """Return the seconds of reading prompts and of decoding, and the number of decode steps."""
    rows = members * examples
    per_row = 2 * 2 * (prompt + completion) * shape.layers * shape.kv_width
    batch = min(rows, MOST_ROWS, int(ROOM / per_row))
    batches = -(-rows // batch)
    bytes_read = 2 * (shape.linear + shape.head) + batch * per_row
    step = max(bytes_read / gpu.bandwidth, batch * products(shape, gpu))
    return [rows * prompt * products(shape, gpu), batches * completion * step], batches * completion


if __name__ == "__main__":
    main()
