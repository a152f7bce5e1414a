"""vLLM and SGLang as servers that a cell starts and steers."""
