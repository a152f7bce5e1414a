"""The built-in engine, its server, clients of SGLang/vLLM, external servers."""
