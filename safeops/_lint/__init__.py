"""A static checker: it reads source, imports nothing of it, and finds gradients that get NaN."""
