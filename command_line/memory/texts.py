"""A memory entry as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from command_line.output import print_line

if TYPE_CHECKING:
    from storage.memory.entries import MemoryEntry


def headline(entry: MemoryEntry) -> str:
    """A line with the entry's id and numbers."""
    return (
        f"{entry.entry_id}  iteration {entry.iteration}, {entry.task_type}, "
        f"credit {entry.credit:+.3f}, support {entry.support}, retrieved {entry.retrievals}"
    )


def print_texts(entry: MemoryEntry) -> None:
    """Print the entry's situation and its text."""
    texts = {"task": entry.task_text, "feedback": entry.feedback, entry.kind: entry.text}
    for name, value in texts.items():
        print_line(f"  {name + ':':<12}" + value.strip().replace("\n", "\n" + " " * 14))
