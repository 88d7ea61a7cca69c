"""A static checker: reads source, imports nothing from it, and finds gradients that become NaN."""
