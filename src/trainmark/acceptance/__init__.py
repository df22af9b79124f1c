"""Find the nodes, links and devices of a cluster to exclude.

Words of this room:

- *member*: what gets a verdict: a device of one machine, or a node of several;
- *peers*: members of the same product and software, which are compared with each other;
- *phase*: what is measured: ``devices`` and ``nodes`` alone, ``pairs``, ``groups`` of nodes;
- *team*: the devices that train together in a round: one, a pair, all of a node or of some nodes;
- *round*: the teams that measure at the same time, numbered within a phase;
- *link*: what connects the two members of a pair;
- *session*: one start of the command; a later session in the same folder measures what is missing;
- *barrier*: a named point at which nodes of a session wait for each other;
- *evidence*: what the nodes wrote while they measured; all verdicts are computed from it;
- *effect*: natural logarithm of a time over that of the peers;
- *slowdown*: the same as it is reported: 0.05 is 5% more time.
"""

DEFAULT_WORSE_BY = 0.03  # slowdown up to which a training step still passes
