"""GPU kernels generated from traces: parts of a segment that treat every row alike, as one CUDA kernel each."""
