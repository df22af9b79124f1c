"""Indexes to find a run by its id, and to count runs by what they ran."""

from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    """Make both."""
    op.create_index("runs_run_id", "runs", ["run_id"])
    op.create_index("runs_case", "runs", ["case", "device", "precision", "status", "kind"])
