"""fedshift: federated learning under feature shift, on NVIDIA FLARE and MONAI."""

__version__ = "0.1.0"
