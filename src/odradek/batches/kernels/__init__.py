"""What numba kernels use: the decorator with its cache, types of arrays, varints, and the load in the background."""
