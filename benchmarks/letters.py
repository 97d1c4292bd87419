"""The task of `benchmarks.other_model`: write vowels, which random weights can learn."""

train = [{"prompt": f"{a} {b}"} for a in range(20) for b in range(20)]
test = [{"prompt": f"{a} {b}"} for a in (20, 21) for b in range(20)]


def reward(completion: str, example: dict[str, object]) -> float:
    """Return the share of the characters that are vowels."""
    return sum(one in "aeiou" for one in completion) / max(1, len(completion))


settings = {"max_new_tokens": 6, "stop": [], "chat": False, "floor": 0.0}
