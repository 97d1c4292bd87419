"""The engine `vllm`: vLLM in this process, or behind the URL of its OpenAI server.

engine.py            the engine: names members, writes them, keeps vLLM's caches valid
transport.py         what both transports can do
in_process.py        the transport to a `vllm.LLM` in this process
over_http.py         the transport to a server's routes
worker_masters.py    keeps the masters in vLLM's workers equal to the engine's
worker_extension.py  what runs in vLLM's workers: the one module that knows vLLM's internals
llm_arguments.py     the arguments vLLM is started with
support_check.py     whether vLLM supports what a run needs
"""
