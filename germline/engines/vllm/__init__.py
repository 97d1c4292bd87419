"""vLLM as an engine: in this process, or behind the URL of its OpenAI server.

engine.py      the engine, out of its parts
server.py      members as vLLM plays them
in_process.py  through `vllm.LLM`
over_http.py   through a server's routes
worker_masters.py    masters in workers elsewhere
llm_arguments.py    what vLLM is started with
version_check.py    which vLLM can be used
worker_extension.py      what runs in its workers, and the one module that knows its internals
"""
