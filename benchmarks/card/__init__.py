"""What ``make gpu`` measures and checks on a card, section by section."""

# In this order; each is a module of this package, see ``section``.
SECTIONS = (
    "ceilings",
    "overhead",
    "data_wait",
)  # fmt: skip
