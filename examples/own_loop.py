"""The training loop written out: ask for members, evaluate, shape, tell, apply.

Run: python examples/own_loop.py
"""

import germline
from germline.shaping import fitness

config = germline.load_config(
    {
        "engine": "toy",  # a character model for quick tests; drop this line for the embedded model
        "task": {"kind": "conciseness", "max_new_tokens": 16, "stop": [" ", "e", "a"]},
        "space": "full",
        "strategy": {"population": 16, "sigma": 0.2, "learning_rate": 0.2},
        "batch_size": 16,
    }
)

with germline.build_run_parts(config) as parts:
    for generation in range(10):
        population = parts.method.ask(generation)  # seeds, not tensors
        batch, decoding = parts.batch(generation), parts.decoding_of(generation)
        evaluation = parts.fleet.evaluate(population, batch, decoding)
        utilities = parts.method.shape(evaluation, antithetic=population.antithetic)
        update = parts.method.strategy.tell(population, utilities)  # coefficients, not tensors
        parts.fleet.apply(update)
        fit = fitness(evaluation.rewards)  # members x examples -> members
        print(f"generation {generation}: fitness {fit.mean():.2f}, best {fit.max():.2f}")
    print("theta is now", parts.fleet.digest()[:16])
