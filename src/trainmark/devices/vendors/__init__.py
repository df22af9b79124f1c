"""The vendors of this project, one file or package each; ``devices`` registers them."""
