"""The runs of a store: listed, shown, compared, reported, removed."""
