"""What all engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py    the fp32 masters here, the serving copy there
server.py    what such an inference engine must be able to do
adapters.py  members as LoRA adapters: low_rank and lora
tensors.py   members as whole tensors: full, and coordinates
texts.py     the tokens that come back, as completions
recipe.py    how masters are made of a model, also elsewhere
wire.py      members and updates as text
http.py      asking a server, also one that is away for a while
unplayed.py  masters alone, for what needs no inference engine
"""
