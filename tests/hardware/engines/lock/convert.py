"""Turns a GGUF file into a folder of safetensors, config and tokenizer: FOLDER FILE OUT."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, file, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16)
# The weights are unpacked by now; without this they would be saved as if they were not.
model.hf_quantizer = None
model.is_quantized = False
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
