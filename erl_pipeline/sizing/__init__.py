"""How much memory a configuration needs, by arithmetic on the model's sizes alone."""
