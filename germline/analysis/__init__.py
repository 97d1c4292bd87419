"""What training did to weights: `germline analyze`.

weights.py        the weights of runs, models and adapters, read piece by piece
request.py        sources and start of an analysis, its result, and `analyze`
deltas.py         how large the change of each tensor is, and of what form
cosine.py         how much the changes of runs agree
trajectory.py     the path of the center, from the journal
modes.py          scores on the line between models and in the plane of three
robustness.py     scores with noise on the weights
directions.py     slope and cost of a further step
coverage.py       which examples several tries solve
scorer.py         scores any combination of weights, with noise
mergekit.py       the YAML of a merge of the sources
spectrum.py       stable rank, power law and subspaces of a matrix
groups.py         tensors by layer and kind, sources by method
"""

from germline.analysis.request import Analysis, Request, Result, analyze
from germline.analysis.weights import Weights, open_weights

__all__ = ["Analysis", "Request", "Result", "Weights", "analyze", "open_weights"]
