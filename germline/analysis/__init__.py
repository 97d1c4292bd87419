"""What training did to weights: `germline analyze`.

weights.py        the weights of runs, models and adapters; the question and answer of an analysis
changes.py        deltas, cosine and trajectory: changes of runs, of pairs of them, and step by step
scorer.py         scores any combination of weights, with noise
scores.py         modes, directions, robustness and coverage: scores at such combinations
analyze.py        `analyze` calls one of them; the merge of sources
"""

from germline.analysis.analyze import Analysis, analyze
from germline.analysis.weights import Request, Result, Weights, open_weights

__all__ = ["Analysis", "Request", "Result", "Weights", "analyze", "open_weights"]
