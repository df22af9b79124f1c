"""What ``make gpu`` measures and checks on a card, section by section."""

# In this order; each is a module of this package, see ``section``.
SECTIONS = (
    "contract",
    "contract_runs",
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
)  # fmt: skip
