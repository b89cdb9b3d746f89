"""The numbers of each stage where people watch them: one place that receives every stage's outcome."""
