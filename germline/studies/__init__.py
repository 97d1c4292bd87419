"""Many small runs that answer one question about a config.

probe.py     which sigma and which learning rate
sounding.py  what members are like at one sigma
trials.py    short trainings, the worse half of which ends at every round
bench.py     the model that is tried out, set back to its start as often as wanted

intrinsic_dimension.py  the smallest random subspace that keeps most of an improvement
"""
