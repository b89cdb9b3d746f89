"""Changes of aliases."""

from datetime import UTC, datetime

from storage.serving.aliases import AliasChange


def alias_change(
    checkpoint_id: str, alias: str = "production", *, previous: str | None = None, run: str = "served"
) -> AliasChange:
    return AliasChange(
        alias=alias,
        checkpoint_id=checkpoint_id,
        previous=previous,
        run=run,
        who="me",
        reason="a test",
        gate={},
        changed=datetime(2026, 1, 1, 12, tzinfo=UTC),
    )
