"""What guards and mends NVIDIA FLARE 2.9: its messages, its console, its processes. It knows nothing of images."""
