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

Modules that measure, in the order in which they are called:

1. ``request`` has the options.
2. ``acceptance`` plans and measures on one machine. For several nodes, ``cluster`` plans a session,
   which ``session`` describes, and submits a job, which runs ``agent`` on every node. Both plan the
   trainings and open the folder with ``folder``.
3. ``timetable`` and ``remarks`` say before the start what is measured and what stays undecided.
4. ``node_session`` measures the rounds of a machine. With several nodes, ``schedule`` chooses the
   pairs of a round, and nodes wait for each other through ``peers``.
5. ``teams`` starts the ranks of a round. Each is a process of ``rank``; ``tasks`` has what it is
   asked and what it returns.
6. ``evidence`` writes all of it to the folder, and reads it again.

Modules that judge, again in their order:

1. ``conclusion`` calls all others, for devices and for nodes. ``assessment`` collects their
   findings.
2. ``times`` takes the times from the evidence, and ``baseline`` those of an earlier test.
3. ``verdicts`` hands the times of each peer group to ``model``, and turns what that decides into
   findings.
4. ``model`` takes arrays and returns a ``judgement``: ``pair_model`` fits effects with
   ``estimation`` and ``trends``; ``node_verdicts`` and ``link_verdicts`` decide by ``intervals``.
5. ``bits`` compares results bit by bit, for ``verdicts``. ``bad_rounds`` finds who is at fault for
   rounds that failed.
6. ``wholes`` judges the training of all nodes together, and ``groups`` finds slow groups of them.
7. ``assessment`` decides which members pass, ``measurement`` describes when and with what was
   measured, and ``result`` is the file with both.
"""

DEFAULT_WORSE_BY = 0.03  # slowdown up to which a training step still passes
