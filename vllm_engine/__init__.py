"""vLLM as an engine of hocket: its models, kernels and memory, our scheduling core. See docs/vllm.md."""
