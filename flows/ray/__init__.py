"""The runner `ray`: stages over the nodes of a Ray cluster."""
