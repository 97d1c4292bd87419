"""The engine `sglang`: an SGLang server, reached by HTTP; nothing of SGLang is imported."""
