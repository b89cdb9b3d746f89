"""Pages of the site that are generated from the code when the site is built: settings, commands, tables,
metrics."""
