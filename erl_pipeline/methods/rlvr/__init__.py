"""RLVR: reinforcement learning from first attempts with verifiable rewards (GRPO, arXiv 2402.03300)."""
