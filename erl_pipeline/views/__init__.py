"""What people look at: reports, drawings of lineage, tables, and records for trackers."""
