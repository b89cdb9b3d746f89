"""The stages of an extractor (Complementary RL, arXiv 2603.17621): it reads episodes, writes lessons into the
memory, and is trained on what these were worth."""
