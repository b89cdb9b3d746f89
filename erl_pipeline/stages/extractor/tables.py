"""The extractor's tables: what it was asked and did, and what entries were worth."""

import pyarrow as pa

from storage.tables.parquet import TableFormat

EXTRACTOR_CALLS = TableFormat(
    name="extractor_calls",
    version=1,
    schema=pa.schema(
        [
            pa.field("request_id", pa.string(), nullable=False),  # also the trajectory with its tokens
            pa.field("extractor_version", pa.string(), nullable=False),  # the extractor's checkpoint
            pa.field("source_trajectory_id", pa.string(), nullable=False),  # the episode that was read
            pa.field("task_type", pa.string(), nullable=False),
            pa.field("environment", pa.string(), nullable=False),
            pa.field("situation", pa.string(), nullable=False),  # the task in the prompt, without lessons
            pa.field("feedback", pa.string(), nullable=False),
            pa.field("seen_entry_ids", pa.list_(pa.string()), nullable=False),  # lessons that it was shown
            pa.field("parse_ok", pa.bool_(), nullable=False),  # whether the answer could be read
            pa.field("operations", pa.list_(pa.string()), nullable=False),  # what the answer asks for
            pa.field("texts", pa.list_(pa.string()), nullable=False),  # one each; empty for `return`
            pa.field("replaced_entry_ids", pa.list_(pa.list_(pa.string())), nullable=False),  # one list each
            pa.field("produced_entry_ids", pa.list_(pa.string()), nullable=False),  # one each; "" for return
        ]
    ),
    dictionary=("extractor_version", "task_type", "environment", "situation", "feedback"),
)
"""One row for each request. An id in `produced_entry_ids` names an entry if the memory did not have the text;
otherwise the memory keeps its entry with that text."""

CREDITS = TableFormat(
    name="credits",
    version=1,
    schema=pa.schema(
        [
            pa.field("entry_id", pa.string(), nullable=False),  # the entry that was shown
            pa.field("request_id", pa.string(), nullable=False),  # the request that first wrote its text
            pa.field("trajectory_id", pa.string(), nullable=False),  # the attempt that saw it
            pa.field("iteration", pa.int32(), nullable=False),
            pa.field("policy_version", pa.string(), nullable=False),  # that of the attempt
            pa.field("reward", pa.float64(), nullable=False),  # 1 where the attempt succeeded, else -1
            pa.field("free_mean", pa.float64()),  # mean reward of the free attempts at the task; null: none
        ]
    ),
    dictionary=("entry_id", "request_id", "policy_version"),
)
"""One row for each entry in the prompt of a guided attempt."""
