"""The Spark session that every job and test uses: what the tables and the stateful queries rely on, set once."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from purgatory_udf.backend import dialect
from purgatory_udf.launch import jars as jars_module
from purgatory_udf.launch import jvm_process, runtimes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Results depend on these, so nobody's configuration may say otherwise.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default provider keeps every key's state on the JVM's heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

# Sensible values that spark-submit's own options, a properties file or `conf` may replace.
DEFAULTS = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Of each of these a checkpoint keeps what the groups remembered then, to be gone on with. By default they are 100.
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # Any other limit has Spark 4.2 ask every Arrow vector for its size after every row, which nested columns make dear.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # How long a followed table that has nothing new is left alone, in ms; Spark's 10 list its log all the time.
    "spark.sql.streaming.pollingDelay": "200",
    # On a local disk, the usual way to write a table's log starts a process for each file, to ask whether it is a link.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # Into how many tasks Delta takes a table's log apart with every commit. Its 50 are meant for millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Spark plans for clusters; on one machine its defaults are hundreds of empty tasks.
LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


# Nothing is kept there, for our tables go by their paths; but Spark makes the folder, by default where a job was begun.
_WAREHOUSE = "spark.sql.warehouse.dir"


def build_session(app: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, made on first use.

    Under spark-submit its options win over our defaults; without it (tests, notebooks) Java and Delta's jars are
    found the way the launcher finds them, and a master that nobody set is `local[*]`. `conf` wins over both.
    """
    from pyspark.sql import SparkSession

    jvm_process.arrive()
    submitted = _submitted()
    settings = {**submitted, **(conf or {})}
    if not submitted:
        _prepare_own_jvm(settings)
    local = settings.setdefault("spark.master", "local[*]").startswith("local")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings.setdefault(_WAREHOUSE, Path(tempfile.gettempdir(), f"purgatory-replay-{os.getuid()}").as_uri())
    for key, value in {**DEFAULTS, **(LOCAL_DEFAULTS if local else {})}.items():
        settings.setdefault(key, value)
    daemon = jvm_process.daemon()
    if daemon is not None:
        settings.setdefault("spark.python.daemon.module", daemon)
    settings.update(REQUIRED)
    extensions = [name for name in settings.get("spark.sql.extensions", "").split(",") if name]
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, EXTENSION]))

    builder = SparkSession.Builder().appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    if submitted:
        _hear_interrupts()
    else:
        # A JVM made from within Python is taken for a shell, and shells warn whatever the log's settings say.
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _hear_interrupts() -> None:
    """As the keyboard's. Spark's own way is to have the JVM cancel its jobs first, which the same interrupt has most
    often ended already; of that, each thread that waits for an answer would say so with a stack."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_tells_no_interrupt)


def _tells_no_interrupt(record: logging.LogRecord) -> bool:
    """Whoever waits for an answer of the JVM's tells the log of an interrupt, and then passes it on."""
    return record.exc_info is None or not isinstance(record.exc_info[1], KeyboardInterrupt)


def let_go(spark: SparkSession) -> None:
    """Spark is not needed any more; where its JVM is beside this process, it ends while what is left is done."""
    spark.stop()
    jvm_process.release()


def session_for(app: str) -> SparkSession:
    """The session of a job that answers questions about tables: Spark's, or what stands for it where these are near."""
    if not dialect.is_local():
        return build_session(app)
    from purgatory_udf.backend.local.session import LocalSession

    local_session: Any = LocalSession()
    return local_session


def _submitted() -> dict[str, str]:
    """What spark-submit was told; empty when this process is not its child."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _prepare_own_jvm(settings: dict[str, str]) -> None:
    import pyspark

    spark_home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    runtime = runtimes.find_java()
    if runtime:
        os.environ["JAVA_HOME"] = str(runtimes.java_home(runtime))
    ivy = jars_module.ivy_home()
    jars = jars_module.delta_cached(pyspark.__version__, ivy) or jars_module.fetch_delta(
        spark_home, pyspark.__version__, ivy, os.environ
    )
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    settings["spark.jars"] = ",".join([*given, *map(str, jars)])
    quiet = quote(str(Path(__file__).resolve().parents[2] / "conf" / "log4j2.properties"))
    ours = f"-Dlog4j2.configurationFile=file:{quiet}"
    settings["spark.driver.extraJavaOptions"] = f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
