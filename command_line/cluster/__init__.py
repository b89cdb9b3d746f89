"""The machines that a run is computed on."""
