"""One word out of five: what a thing is, answered by that word alone.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/short_answers.yaml task=configs/smollm2/one_word.py
"""

import re

import short_answers

CLASSES = {
    "animal": "horse tiger whale eagle spider frog shark rabbit camel goat wolf penguin snake bee "
    "turtle monkey salmon duck",
    "plant": "oak lavender carrot fern tulip cactus pine wheat ivy bamboo lily moss clover daisy "
    "onion potato nettle maple",
    "country": "France Japan Brazil Egypt Canada Norway India Peru Kenya Spain China Italy Mexico "
    "Poland Cuba Greece Chile Iran",
    "color": "red blue green yellow purple teal navy brown gray white black maroon turquoise "
    "beige crimson khaki scarlet magenta",
    "tool": "hammer saw drill wrench screwdriver axe shovel chisel rake pliers scissors ladder "
    "hoe crowbar tongs file mallet sickle",
}

by_class = [[(thing, name) for thing in things.split()] for name, things in CLASSES.items()]
rows = [
    {"prompt": f"{thing}: animal, plant, country, color or tool?", "answer": name}
    for alike in zip(*by_class, strict=True)
    for thing, name in alike
]
train, test = rows[:60], rows[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 for the right word alone, less for each further word, 0 with another class."""
    named = CLASSES.keys() & re.findall(r"\w+", completion.lower())
    return short_answers.reward(completion, example) if named <= {example["answer"]} else 0.0


settings = {"max_new_tokens": 16, "chat": True, "floor": 0.0}
