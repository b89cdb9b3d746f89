"""Nodes, the machines that compute a run together: what each one has, and whether it is fit for the run."""
