"""KIP-848 groups: members, reconciliation, assignors, patterns and records.

``protocol`` checks the member of a ConsumerGroupHeartbeat and its epoch. A changed subscription or changed topics
(``metadata_hash`` shows a change) start a new group epoch. ``assignors`` make a target assignment, at most once per
assignment interval. ``member`` moves this one member towards the target: the member first gives up partitions and
reports that, then it gets partitions that no other member owns. Each change generates records (``records``); ``group``
changes at their replay. ``migration`` converts a classic group and back, ``classic_members`` serves classic members,
and ``regex`` resolves patterns.
"""
