"""What trials of new notes showed: the table from which the memory learns which ones to keep."""

import pyarrow as pa

from storage.tables.parquet import TableFormat

NOTE_TRIALS = TableFormat(
    name="note_trials",
    version=1,
    schema=pa.schema(
        [
            pa.field("task_type", pa.string(), nullable=False),
            pa.field("text", pa.string(), nullable=False),
            pa.field("source_trajectory_id", pa.string(), nullable=False),  # the first reflection
            pa.field("copies", pa.int32(), nullable=False),  # reflections with the text
            pa.field("successes", pa.int32(), nullable=False),  # those of them that led to success
            pa.field("task_ids", pa.list_(pa.string()), nullable=False),  # on which it was tried
            pa.field("reward", pa.float64()),  # mean reward with it; null: not tried, or nothing was scored
            pa.field("reward_without", pa.float64()),  # mean reward of attempts at the same tasks without it
            pa.field("kept", pa.bool_(), nullable=False),  # whether the memory takes it
        ]
    ),
    dictionary=("task_type",),
)
"""One row for each note that is not in the memory yet, in the order in which they are tried."""
