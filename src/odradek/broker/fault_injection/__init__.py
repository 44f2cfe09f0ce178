"""Fault injection for tests of clients: requests of an API, topic or client fail, wait or lose their connection.

The package is loaded, and the middleware installed, only while a fault is set.

| kind | ``when="before"`` | ``when="after"`` |
|---|---|---|
| error | the request is not served; the reply has the error | the request is served; the reply has the error |
| delay | the request is served after the delay | the request is served at once; the reply is delayed |
| disconnect | the request is not served; the connection closes | the request is served; the connection closes |
| drop | the request is not served; no reply | the request is served; no reply |

As in Kafka, the broker serves the requests of a connection in order: a delayed or dropped request also stops the
requests after it. ``rules`` matches faults to requests, ``replies`` makes the error reply of each API, and
``middleware`` applies the fault.
"""
