"""What the engines share whose model runs in an inference engine: vLLM or SGLang.

engine.py       the base class of these engines: fp32 masters here, the serving copy there
http_client.py  JSON over HTTP, with retries
"""
