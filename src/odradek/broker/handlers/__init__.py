"""One file per API: ``API_KEY``, ``VERSIONS`` and ``handle(broker, context, message)``.

``handle`` returns a mapping for ``wire.schemas.encode``, ready bytes, a list of chunks, ``None`` for "no reply",
or a Deferred of one of these.
"""
