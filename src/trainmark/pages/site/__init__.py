"""The site: pages about many results."""
