"""The engine `vllm`: vLLM in this process.

engine.py            the engine: names members, writes them, keeps vLLM's caches valid
in_process.py        starts a `vllm.LLM`, generates and scores with it, and calls its workers
worker_masters.py    keeps the masters in vLLM's workers equal to the engine's
worker_extension.py  what runs in vLLM's workers: the one module that knows vLLM's internals
llm_arguments.py     the arguments vLLM is started with
"""
