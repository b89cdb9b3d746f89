"""The stages of replay (ExGRPO, arXiv 2510.02245): which attempts are stored, and which are trained again."""
