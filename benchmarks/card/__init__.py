"""What ``make gpu`` measures and checks on a card, section by section."""

# In this order; each is a module of this package, see ``section``.
SECTIONS = (
    "contract",
    "contract_runs",
    "memory",
    "ceilings",
    "attention",
    "overhead",
    "data_wait",
    "compile",
    "distilbert",
    "gpt",
    "gpt_compiled",
    "llama",
    "llama31",
    "glm",
    "dlrm",
    "mmlu",
)

# What a budget is spent on, in this order, and each section's share of what is left of it by the
# time it starts: what a short one leaves goes to those that follow.
BRIEF_SHARES = {
    "contract": 2.0,
    "memory": 3.0,
    "ceilings": 1.0,
    "gpt": 2.0,
    "llama": 2.5,
    "dlrm": 2.0,
}
