"""Fault injection for tests of clients: requests of an API, topic or client fail, wait, get no reply or are cut off.

The first fault loads the package. The middleware is installed only while a fault is set or a connection is blocked.

| kind | ``when="before"`` | ``when="after"`` |
|---|---|---|
| error | the request is not served; the reply has the error | the request is served; the reply has the error |
| delay | the request is served after the delay | the request is served at once; the reply is delayed |
| disconnect | the request is not served; the connection closes | the request is served; the connection closes |
| drop | the request is not served; no reply | the request is served; no reply |

As in Kafka, the broker replies to the requests of a connection in order. A delayed request also stops the requests
after it, and so does a request without a reply (drop). A delayed reply stops only the replies after it.

``rules`` matches faults to requests, ``replies`` makes the error reply of each API, and ``middleware`` applies the
fault.
"""
