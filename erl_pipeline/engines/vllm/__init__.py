"""vLLM as the generation engine: a server this run starts, or servers somebody else runs."""
