"""Every setting of a run, validated before anything starts. Importing this package never imports torch."""
