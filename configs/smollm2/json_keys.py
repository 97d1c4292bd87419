"""A JSON object with two keys: countries and capitals, words and opposites.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/the_answer_is_es.yaml task=configs/smollm2/json_keys.py
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
    """Return the share of four points: there is an object, it has each key, it stands alone."""
    text = completion.strip()
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1])
    except ValueError:
        return 0.0
    points = [True, *(key in found for key in example["keys"]), text[0] + text[-1] == "{}"]
    return sum(points) / len(points)


settings = {"max_new_tokens": 40, "chat": True, "floor": 0.0}
