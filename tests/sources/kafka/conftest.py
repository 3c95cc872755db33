"""A broker for the whole test session, and Spark with the Kafka connector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.sources.kafka_topic import add_connector
from tests.sources.kafka.broker import broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[str, Sequence[str]], None]
READY_TIMEOUT_S = 60


@pytest.fixture(scope="session")
def bootstrap(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the broker, which is ready: its admin interface describes the cluster."""
    add_connector(spark)
    with broker(tmp_path_factory.mktemp("broker")) as address:
        jvm: Any = spark._jvm
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", address)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        # Kafka's admin client retries until the broker responds or the timeout has passed.
        admin.describeCluster().nodes().get(READY_TIMEOUT_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
        admin.close()
        yield address


@pytest.fixture(scope="session")
def send(spark: SparkSession, bootstrap: str) -> Send:
    """A function that appends messages in order to the single partition of a topic, and creates the topic."""

    def sent(topic: str, messages: Sequence[str]) -> None:
        rows = spark.createDataFrame([(message,) for message in messages], "value STRING").coalesce(1)
        rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

    return sent
