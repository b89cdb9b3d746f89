"""Sokoban for the tiny policy: vocabulary, prompts of fixed width, scripted demonstrations."""
