"""fedshift under NVIDIA FLARE, the only package that imports nvflare. It moves messages and holds no mathematics."""
