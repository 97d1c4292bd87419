"""What all engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py    the fp32 masters here, the serving copy there
server.py    what such an inference engine must be able to do
adapters.py  members as LoRA adapters: low_rank and lora
tensors.py   members as whole tensors: full, and coordinates
http.py      asking a server, also one that is away for a while
texts.py     the tokens that come back, as completions
"""
