"""Faults on demand: a request of some API, topic or client fails, waits, or loses its connection.

For tests of what clients do then. Loaded, and asked, only while a fault is set.

| kind | ``when="before"`` | ``when="after"`` |
|---|---|---|
| error | answered with the code, nothing is done | done, then answered with the code all the same |
| delay | waits, then is done | done at once, the reply waits |
| disconnect | the connection is closed, nothing is done | done, then closed in place of a reply |
| drop | nothing is done and there is no reply | done, and there is no reply |

As in Kafka, a connection's requests are done one after another: while one waits to be done, or has been dropped,
those behind it stand still. ``rules`` says which requests a fault strikes, ``replies`` what a faulty reply of each API
is, ``middleware`` what happens to a request that is struck.
"""
