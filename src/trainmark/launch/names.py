"""The names of the launchers: site files and verbs name engines that they never load."""

LOCAL = "local"  # this machine: ``launch.local`` starts its ranks without an engine
CONTAINER = "container"  # this machine, in the site's container
CLASSES = {
    CONTAINER: "Container",
    "slurm": "Slurm",
    "ssh": "Ssh",
    "kubernetes": "Kubernetes",
    "ray": "Ray",
}
NAMES = (LOCAL, *CLASSES)
