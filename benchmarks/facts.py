"""Fifty short factual questions, by which `benchmarks.real_model` sees what a model forgot.

The reward is 1 where the answer has the right word, in capital or small letters.
"""

CAPITALS = (
    "France Paris, Italy Rome, Japan Tokyo, Spain Madrid, Germany Berlin, Egypt Cairo, "
    "Russia Moscow, China Beijing, England London, Greece Athens, Portugal Lisbon, "
    "Ireland Dublin, Austria Vienna, "
    "Poland Warsaw, Cuba Havana, Peru Lima, Kenya Nairobi, Norway Oslo, Sweden Stockholm, "
    "Finland Helsinki, Hungary Budapest, Thailand Bangkok, Iran Tehran, Iraq Baghdad, Canada Ottawa"
)
OPPOSITES = (
    "hot cold, big small, up down, day night, left right, black white, old young, "
    "rich poor, open close, early late, happy sad, hard soft, wet dry, fast slow, long short"
)
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
}

pairs = {
    **{f"What is the capital of {a}?": b for a, b in map(str.split, CAPITALS.split(", "))},
    **{f"What is the opposite of {a}?": b for a, b in map(str.split, OPPOSITES.split(", "))},
    **OTHERS,
}
train = test = [{"prompt": question, "answer": word} for question, word in pairs.items()]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return 1 where the word of the answer is in the completion."""
    return float(example["answer"].lower() in completion.lower())


settings = {"max_new_tokens": 24, "chat": True, "floor": 0.0}
