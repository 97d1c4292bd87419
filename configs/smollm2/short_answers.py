"""Short and right: questions whose answer is one word; each further word costs a sixteenth.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/short_answers.yaml
"""

import re

from capital_letters import ADJECTIVES, COUNTRIES

CAPITALS = """Paris Madrid Rome Tokyo Beijing Delhi Cairo Nairobi Brasilia Lima Santiago Ottawa
Mexico Oslo Stockholm Helsinki Warsaw Vienna Athens Ankara Moscow Havana Tehran Baghdad Dublin
Lisbon Brussels Copenhagen Budapest Bangkok"""
OPPOSITES = """cold short slow new|young dark|heavy sad|unhappy poor weak soft|easy late empty
dirty light|bright thick|fat quiet|soft sour|bitter dry shallow closed|close far low hard
cowardly|cowardice expensive hard|difficult dull|blunt old narrow wet cold|cool"""
OTHERS = """What color is grass? green, What color is blood? red, What color is snow? white,
What color is a banana? yellow, What color is coal? black, How many legs does a dog have? four|4,
How many months are in a year? twelve|12, Which animal says meow? cat, Which animal says moo? cow,
What do hens lay? eggs, What is a young dog called? puppy, What is a young cat called? kitten,
Which planet is closest to the sun? mercury, Which planet is the largest? jupiter,
Which season comes after winter? spring, Which month comes after March? april,
Which day comes after Monday? tuesday, Which language do people speak in Brazil? portuguese,
Which language do people speak in Mexico? spanish, What is the currency of Japan? yen,
What is the currency of India? rupee, Who painted the Mona Lisa? leonardo|vinci,
On which continent is Kenya? africa, On which continent is China? asia,
On which continent is France? europe, What is the chemical symbol of water? h2o,
Which metal is liquid at room temperature? mercury, How many sides does a triangle have? three|3,
Which organ pumps blood? heart, What do people breathe? air|oxygen"""


capitals = [
    (f"What is the capital of {country}?", capital)
    for country, capital in zip(COUNTRIES, CAPITALS.lower().split(), strict=True)
]
opposites = [
    (f"What is the opposite of {adjective}?", opposite)
    for adjective, opposite in zip(ADJECTIVES, OPPOSITES.split(), strict=True)
]
others = [tuple(row.strip().rsplit(" ", 1)) for row in OTHERS.split(",")]
rows = [
    {"prompt": prompt, "answer": answer}  # alternatives are divided by |
    for three in zip(capitals, opposites, others, strict=True)
    for prompt, answer in three
]
train, test = rows[:60], rows[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 for the right word alone, less for each further word, 0 without it."""
    words = re.findall(r"\w+", completion.lower())
    is_right = not set(example["answer"].split("|")).isdisjoint(words)
    return max(0.0, (17 - len(words)) / 16) if is_right else 0.0


settings = {"max_new_tokens": 16, "chat": True, "floor": 0.0}
