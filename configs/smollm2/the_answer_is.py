"""Begin with "The answer is": short questions; the share of these three words at the beginning.

make smollm2                                            # fetches the model, 98 MB
germline train configs/smollm2/the_answer_is.yaml
"""

from capital_letters import questions

WORDS = ("The", "answer", "is")

prompts = [{"prompt": question} for question in questions]
train, test = prompts[:60], prompts[60:]


def reward(completion: str, example: dict[str, str]) -> float:
    """Return the share of the first three words that are right."""
    return sum(map(str.__eq__, completion.split(), WORDS)) / len(WORDS)


settings = {"max_new_tokens": 6, "chat": True, "floor": 0.0}
