"""Segmentation: slices as in the papers, and patches of any number of classes, sequences and dimensions."""
