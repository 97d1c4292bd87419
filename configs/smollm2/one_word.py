"""One word out of five: what a thing is, answered by that word alone.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/the_answer_is_es.yaml task=configs/smollm2/one_word.py
"""

import re

CLASSES = {
    "animal": "horse tiger whale eagle spider frog shark rabbit camel goat wolf penguin snake bee "
    "turtle monkey salmon duck",
    "plant": "oak rose carrot fern tulip cactus pine wheat ivy bamboo lily moss palm daisy onion "
    "potato clover maple",
    "country": "France Japan Brazil Egypt Canada Norway India Peru Kenya Spain China Italy Mexico "
    "Poland Cuba Greece Chile Iran",
    "color": "red blue green yellow purple orange pink brown gray white black violet turquoise "
    "beige crimson indigo scarlet magenta",
    "tool": "hammer saw drill wrench screwdriver axe shovel chisel rake pliers scissors ladder "
    "hoe crowbar tongs file mallet sickle",
}

by_class = [[(thing, name) for thing in things.split()] for name, things in CLASSES.items()]
rows = [
    {"prompt": f"Is {thing} an animal, a plant, a country, a color or a tool?", "answer": name}
    for alike in zip(*by_class, strict=True)
    for thing, name in alike
]
train, test = rows[:60], rows[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 / words if the right word is among the words of the answer, else 0."""
    words = re.findall(r"\w+", completion.lower())
    return 1 / len(words) if example["answer"] in words else 0.0


settings = {"max_new_tokens": 16, "chat": True, "floor": 0.0}
