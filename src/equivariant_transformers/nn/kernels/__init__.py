"""GPU kernels for features, written in Triton and imported only where they are launched."""
