"""What training did to weights: `germline analyze`.

weights.py        the weights of runs, models and adapters, read piece by piece
request.py        sources and start of an analysis, its result, `analyze`, and the merge of sources
changes.py        deltas and cosine: size and form of the changes, and how much those of runs agree
trajectory.py     the path of the center, from the journal
scorer.py         scores any combination of weights, with noise
score_lines.py    modes and directions: scores along lines between models, and from a center
score_tries.py    robustness and coverage: scores with noise, and of several answers
groups.py         tensors by layer and kind, sources by method
"""

from germline.analysis.request import Analysis, Request, Result, analyze
from germline.analysis.weights import Weights, open_weights

__all__ = ["Analysis", "Request", "Result", "Weights", "analyze", "open_weights"]
