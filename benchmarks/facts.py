"""Fifty short factual questions, by which `benchmarks.real_model` sees what a model forgot.

None is a question of configs/smollm2. The reward is 1 where the answer has the right word.
"""

import re

CAPITALS = (
    "Germany Berlin, England London, Scotland Edinburgh, Wales Cardiff, Croatia Zagreb, "
    "Serbia Belgrade, Bulgaria Sofia, Romania Bucharest, Ukraine Kiev, Iceland Reykjavik, "
    "Latvia Riga, Estonia Tallinn, Lithuania Vilnius, Morocco Rabat, Algeria Algiers, "
    "Ethiopia Ababa, Ghana Accra, Senegal Dakar, Jordan Amman, Lebanon Beirut, Syria Damascus, "
    "Vietnam Hanoi, Nepal Kathmandu, Argentina Buenos, Colombia Bogota, Venezuela Caracas, "
    "Ecuador Quito, Jamaica Kingston, Afghanistan Kabul, Pakistan Islamabad"
)
OPPOSITES = "up down, left right, black white, big small, inside outside, first last, true false"
OTHERS = {
    "How many days are in a week?": "seven",
    "What color is the sky on a clear day?": "blue",
    "Which planet do people live on?": "earth",
    "What do bees make?": "honey",
    "What is frozen water called?": "ice",
    "Who wrote Romeo and Juliet?": "shakespeare",
    "What gas do plants take in?": "carbon",
    "What is the largest ocean?": "pacific",
    "What metal is attracted by magnets?": "iron",
    "Which animal barks?": "dog",
    "What do cows drink when they are young?": "milk",
    "How many legs does a spider have?": "eight",
    "On which continent is Egypt?": "africa",
}

pairs = {
    **{f"What is the capital of {a}?": b for a, b in map(str.split, CAPITALS.split(", "))},
    **{f"What is the opposite of {a}?": b for a, b in map(str.split, OPPOSITES.split(", "))},
    **OTHERS,
}
train = test = [{"prompt": question, "answer": word} for question, word in pairs.items()]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 where the completion has the word of the answer, in capital or small letters."""
    return float(bool(re.search(rf"\b{example['answer']}\b", completion, re.IGNORECASE)))


settings = {"max_new_tokens": 24, "chat": True, "floor": 0.0}
