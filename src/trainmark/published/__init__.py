"""Results that others published: import of pages and logs, analysis of training logs, audit."""
