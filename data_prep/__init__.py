"""Preparation of data sets: one module a data set, from the public download to prepared site folders."""
