"""How many bytes a job and its result take on their way to a remote engine and back.

Counted are the bytes of their pickles. A pipe carries just these; a cluster adds an envelope of a
few hundred bytes.
"""

import pickle

from germline.comm_bytes import CommBytes
from germline.fleet.engine_queries import DimensionQuery, ScalesQuery
from germline.fleet.worker_jobs import ApplyJob, DigestJob, EngineJob, GenerateJob

_COUNTED = (GenerateJob, ApplyJob, DigestJob, ScalesQuery, DimensionQuery)
"""The jobs of a generation; the others carry states or the journal."""


def sent_bytes(job: EngineJob) -> CommBytes:
    """Return the bytes that sending a job takes."""
    if not isinstance(job, _COUNTED):
        return CommBytes()
    prompts = [example.prompt for example in job.examples] if isinstance(job, GenerateJob) else []
    return CommBytes(sent=_size(job), text=sum(len(_bytes(prompt)) for prompt in prompts))


def received_bytes(job: EngineJob, answer: object) -> CommBytes:
    """Return the bytes that a valid result of a job takes."""
    if not isinstance(job, _COUNTED):
        return CommBytes()
    text = 0
    if isinstance(job, GenerateJob) and isinstance(answer, list):
        written = [completion for row in answer for completion in row]
        # Pickled together, as in the answer: pickle writes an object that occurs twice only once.
        text = _size([(one.text, one.tokens) for one in written])
    return CommBytes(received=_size(answer), text=text)


def _size(value: object) -> int:
    return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
