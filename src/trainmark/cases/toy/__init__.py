"""The smallest complete case: the example for new ones, and what the tests run."""
