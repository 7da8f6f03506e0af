"""Transforms, one file each; every one works on TensorDicts and on rows of columns."""
