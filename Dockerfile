# The broker alone: the light install, without numpy, Java and Spark.
#   docker build -t odradek .
#   docker run -p 9092:9092 -v odradek:/var/lib/odradek odradek --config advertised.listeners=PLAINTEXT://localhost:9092
FROM python:3.13-slim AS build
COPY . /source
RUN python -m venv /opt/odradek \
 && /opt/odradek/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c /source/constraints.txt /source \
 && /opt/odradek/bin/python -m pip uninstall --yes --quiet pip

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
