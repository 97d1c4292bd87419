"""The engine `vllm`: vLLM in this process.

engine.py            the engine: names members, writes them, keeps vLLM's caches and workers valid
in_process.py        starts a `vllm.LLM`, generates and scores with it, and calls its workers
worker_extension.py  what runs in vLLM's workers: the one module that knows vLLM's internals
"""
