"""fedshift under NVIDIA FLARE: the only package that imports nvflare. It moves messages and computes nothing."""
