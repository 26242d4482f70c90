"""CUDA: TileLang lowers, nvcc compiles, the driver launches."""
