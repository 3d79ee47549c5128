"""Chains on other processes and machines, by Dask's distributed scheduler (docs/clusters.md, decision 54)."""
