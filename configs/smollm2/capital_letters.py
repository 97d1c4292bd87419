"""Answers in capital letters to short questions; the share of letters that are capital.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/capital_letters.yaml
"""

COUNTRIES = [
    "France",
    "Spain",
    "Italy",
    "Japan",
    "China",
    "India",
    "Egypt",
    "Kenya",
    "Brazil",
    "Peru",
    "Chile",
    "Canada",
    "Mexico",
    "Norway",
    "Sweden",
    "Finland",
    "Poland",
    "Austria",
    "Greece",
    "Turkey",
    "Russia",
    "Cuba",
    "Iran",
    "Iraq",
    "Ireland",
    "Portugal",
    "Belgium",
    "Denmark",
    "Hungary",
    "Thailand",
]
ADJECTIVES = [
    "hot",
    "tall",
    "fast",
    "old",
    "light",
    "happy",
    "rich",
    "strong",
    "hard",
    "early",
    "full",
    "clean",
    "dark",
    "thin",
    "loud",
    "sweet",
    "wet",
    "deep",
    "open",
    "near",
    "high",
    "soft",
    "brave",
    "cheap",
    "easy",
    "sharp",
    "young",
    "wide",
    "dry",
    "warm",
]
THINGS = [
    "a color",
    "a fruit",
    "an animal that can fly",
    "a metal",
    "a season",
    "a month",
    "a planet",
    "an ocean",
    "a river",
    "a mountain",
    "a musical instrument",
    "a sport",
    "a vegetable",
    "a flower",
    "a tree",
    "an insect",
    "a fish",
    "a country",
    "a language",
    "a tool",
    "a drink",
    "a dessert",
    "a spice",
    "a shape",
    "a vehicle",
    "a piece of furniture",
    "a body part",
    "a school subject",
    "a job",
]

questions = [
    question
    for country, adjective, thing in zip(
        COUNTRIES, ADJECTIVES, [*THINGS, "a board game"], strict=True
    )
    for question in (
        f"What is the capital of {country}?",
        f"What is the opposite of {adjective}?",
        f"Name {thing}.",
    )
]
prompts = [{"prompt": question} for question in questions]
train, test = prompts[:60], prompts[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return the share of the letters that are capital; 0 without any letter."""
    letters = [character for character in completion if character.isalpha()]
    return sum(letter.isupper() for letter in letters) / len(letters) if letters else 0.0


settings = {"max_new_tokens": 16, "chat": True, "floor": 0.0}
