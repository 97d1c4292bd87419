"""What the engines share whose model runs in an inference engine: vLLM or SGLang."""
