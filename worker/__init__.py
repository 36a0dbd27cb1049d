"""The engine process: loop, model runner, kernels. Knows tensors, never HTTP."""
