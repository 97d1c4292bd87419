"""A JSON object with two keys: countries and capitals, words and opposites.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/json_keys.yaml
"""

import json

from capital_letters import ADJECTIVES, COUNTRIES

rows = [
    {"prompt": f'Write {of} and its {second} as JSON with the keys "{first}" and "{second}".'}
    | {"keys": [first, second]}
    for pair in zip(COUNTRIES, ADJECTIVES, strict=True)
    for of, first, second in zip(pair, ("country", "word"), ("capital", "opposite"), strict=True)
]
train, test = rows[:40], rows[40:]


def reward(completion: str, example: dict[str, list[str]]) -> float:
    """Return the share of three points: each key has a text, and the object stands alone."""
    text = completion.strip()
    start = text.find("{")
    try:
        found, end = json.JSONDecoder().raw_decode(text, max(0, start))
    except (ValueError, RecursionError):
        return 0.0
    values = [found.get(key) for key in example["keys"]] if isinstance(found, dict) else []
    texts = sum(isinstance(value, str) and bool(value.strip()) for value in values)
    stands_alone = texts > 0 and start == 0 and end == len(text)
    return (texts + stands_alone) / 3


settings = {"max_new_tokens": 40, "chat": True, "floor": 0.0}
