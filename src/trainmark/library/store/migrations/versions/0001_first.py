"""The first index.

An empty database gets the tables of ``tables`` at once; revisions change older ones.
"""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Change nothing: there was no index before."""
