"""Short and right: questions whose answer is one word; each further word costs a sixteenth.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/short_answers.yaml
"""

import re

CAPITALS = """France Paris, Spain Madrid, Italy Rome, Japan Tokyo, China Beijing, India Delhi,
Egypt Cairo, Kenya Nairobi, Brazil Brasilia, Peru Lima, Chile Santiago, Canada Ottawa,
Mexico Mexico,
Norway Oslo, Sweden Stockholm, Finland Helsinki, Poland Warsaw, Austria Vienna, Greece Athens,
Turkey Ankara, Russia Moscow, Cuba Havana, Iran Tehran, Iraq Baghdad, Ireland Dublin,
Portugal Lisbon, Belgium Brussels, Denmark Copenhagen, Hungary Budapest, Thailand Bangkok"""
OPPOSITES = """hot cold, tall short, fast slow, old new|young, light dark|heavy, happy sad|unhappy,
rich poor, strong weak, hard soft|easy, early late, full empty, clean dirty, dark light|bright,
thin thick|fat, loud quiet|soft, sweet sour|bitter, wet dry, deep shallow, open closed|close,
near far, high low, soft hard, brave cowardly|cowardice, cheap expensive, easy hard|difficult,
sharp dull|blunt, young old, wide narrow, dry wet, warm cold|cool"""
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


def pairs(table: str, question: str) -> list[tuple[str, str]]:
    """Return questions and answers; alternatives of an answer are divided by |."""
    rows = [row.strip().rsplit(" ", 1) for row in table.split(",")]
    return [(question.format(of), answer.lower()) for of, answer in rows]


of_all = zip(
    pairs(CAPITALS, "What is the capital of {}?"),
    pairs(OPPOSITES, "What is the opposite of {}?"),
    pairs(OTHERS, "{}"),
    strict=True,
)
rows = [{"prompt": prompt, "answer": answer} for three in of_all for prompt, answer in three]
train, test = rows[:60], rows[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 for the right word alone, less for each further word, 0 without it."""
    words = re.findall(r"\w+", completion.lower())
    is_right = not set(example["answer"].split("|")).isdisjoint(words)
    return max(0.0, (17 - len(words)) / 16) if is_right else 0.0


settings = {"max_new_tokens": 16, "chat": True, "floor": 0.0}
