"""Commands about the machines that a run is computed on."""
