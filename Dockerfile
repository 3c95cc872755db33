# An image in which ./spark-submit.sh runs at once: Python, Java, the pinned packages and Delta's jars. Not built in CI.
#
#   docker build -t purgatory-replay .
#   docker run --rm -v "$PWD:/data" -w /data purgatory-replay ingest --from jsonl trace.jsonl --out out
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY . /opt/purgatory-replay
# Creates .venv and compiles the engine; the demo fetches Delta's jars and checks the installation.
RUN cd /tmp && /opt/purgatory-replay/spark-submit.sh --version && PURGATORY_NO_ARCHIVE=1 /opt/purgatory-replay/spark-submit.sh \
    && rm -rf /tmp/demo
ENV PURGATORY_NO_ARCHIVE=1
ENTRYPOINT ["/opt/purgatory-replay/spark-submit.sh"]
