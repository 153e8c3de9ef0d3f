"""GPU kernels, written in Triton. Nothing here is imported where there is no Triton or no GPU."""
