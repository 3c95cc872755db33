"""One broker for all tests, and a session that can talk to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.sources.kafka.kafka_topic import add_connector
from tests.sources.kafka.broker import broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[str, Sequence[str]], None]
READY_WITHIN_S = 60


@pytest.fixture(scope="session")
def bootstrap(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker's address, once its admin interface says who is in the cluster."""
    add_connector(spark)
    with broker(tmp_path_factory.mktemp("broker")) as address:
        jvm: Any = spark._jvm
        properties = jvm.java.util.Properties()
        properties.setProperty("bootstrap.servers", address)
        admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        # Kafka's own admin client asks again until it is answered or the time is over.
        admin.describeCluster().nodes().get(READY_WITHIN_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
        admin.close()
        yield address


@pytest.fixture(scope="session")
def send(spark: SparkSession, bootstrap: str) -> Send:
    """Append messages, in their order, to the one partition of a topic, which is made with the first of them."""

    def sent(topic: str, messages: Sequence[str]) -> None:
        rows = spark.createDataFrame([(message,) for message in messages], "value STRING").coalesce(1)
        rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

    return sent
