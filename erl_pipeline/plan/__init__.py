"""A run as a plan: stages, the graph of their recipes, and its execution. Importing it never imports
torch."""
