"""The same work on a Dask cluster, and kernels that are bigger than memory."""
