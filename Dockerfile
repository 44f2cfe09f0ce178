# The broker alone: the light install, without numpy, Java and Spark.
#   docker build -t odradek .
#   docker run -p 9092:9092 -v odradek:/var/lib/odradek odradek --config advertised.listeners=PLAINTEXT://localhost:9092
# The monitor of a cluster, which needs nothing to write but its volume:
#   docker build -t odradek-monitor --target monitor .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 -v monitor:/var/lib/odradek -v ./token:/run/token:ro \
#       odradek-monitor -b kafka:9092 --token-file /run/token
FROM python:3.13-slim AS build
COPY . /source
RUN python -m venv /opt/odradek \
 && /opt/odradek/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c /source/constraints.txt /source \
 && /opt/odradek/bin/python -m pip uninstall --yes --quiet pip

FROM python:3.13-slim AS monitor-build
COPY . /source
RUN python -m venv /opt/odradek \
 && /opt/odradek/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c /source/constraints.txt '/source[ui]' \
 && /opt/odradek/bin/python -m pip uninstall --yes --quiet pip

FROM python:3.13-slim AS monitor
RUN useradd --system --uid 1000 --home-dir /var/lib/odradek --create-home odradek
COPY --from=monitor-build /opt/odradek /opt/odradek
ENV PATH=/opt/odradek/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER odradek
# Compiles the kernels into the user's cache, which a new volume gets with the folder. A volume without them, or another
# kind of processor, has them compiled once by the first start.
RUN python -c 'import odradek.monitor.offsets_reader'
VOLUME ["/var/lib/odradek"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=5)"]
# Options follow as arguments: -b HOST:PORT --token-file FILE
ENTRYPOINT ["odradek", "monitor", "--data", "/var/lib/odradek/monitor", "--listen", "0.0.0.0:8000"]

FROM python:3.13-slim
RUN useradd --system --uid 1000 --home-dir /var/lib/odradek --create-home odradek
COPY --from=build /opt/odradek /opt/odradek
ENV PATH=/opt/odradek/bin:$PATH
USER odradek
VOLUME ["/var/lib/odradek"]
EXPOSE 9092
# The broker closes its logs on SIGTERM and ends with exit code 0.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=5s --retries=3 CMD ["odradek", "topics", "list", "-b", "127.0.0.1:9092"]
# Settings follow as arguments: --config NAME=VALUE
ENTRYPOINT ["odradek", "serve", "--data-dir", "/var/lib/odradek", "--listen", "0.0.0.0:9092"]
