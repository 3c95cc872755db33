"""The Spark session of jobs and tests, with the settings that the tables and the stateful queries rely on."""

from __future__ import annotations

import logging
import os
import signal
import socketserver
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from purgatory_udf.backend import spark_workers
from purgatory_udf.common.errors import ignored_interrupts
from purgatory_udf.common.installation import conf_folder
from purgatory_udf.launch import jars as jars_module
from purgatory_udf.launch import jvm, runtimes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Results depend on these settings, so they override any configuration.
REQUIRED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The default provider keeps the state of every key on the JVM's heap.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

# Defaults that spark-submit's options, a properties file or `conf` may override.
DEFAULTS = {
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The number of batches for which a checkpoint keeps the state; Spark's default is 100.
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # With another limit, Spark 4.2 computes the size of every Arrow vector after every row, which is slow for nested
    # columns.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # The pause, in ms, before a streaming table without new commits is polled again; Spark's default of 10 lists its
    # log all the time.
    "spark.sql.streaming.pollingDelay": "200",
    # The default log store starts a process per log file on a local disk, to check for a link.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # The number of tasks that read a table's log at each commit; the default of 50 is meant for millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# On one machine Spark's defaults cause hundreds of empty tasks.
LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


# Tables are addressed by path, so nothing is stored there; but Spark creates the folder, by default in the working
# directory.
_WAREHOUSE = "spark.sql.warehouse.dir"


def build_session(app: str, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Return the session of this process, created at the first call.

    Under spark-submit, its options override the defaults of this module. Without it (tests, notebooks), Java and
    Delta's jars are found as the launcher finds them, and the default master is `local[*]`. `conf` overrides both.
    """
    from pyspark.sql import SparkSession

    jvm.wait_until_ready()
    submitted = _submitted_conf()
    settings = {**submitted, **(conf or {})}
    if not submitted:
        _prepare_jvm(settings)
    local = settings.setdefault("spark.master", "local[*]").startswith("local")
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings.setdefault(_WAREHOUSE, Path(tempfile.gettempdir(), f"purgatory-replay-{os.getuid()}").as_uri())
    for key, value in {**DEFAULTS, **(LOCAL_DEFAULTS if local else {})}.items():
        settings.setdefault(key, value)
    if local and submitted:
        # Elsewhere the daemon might not find this package.
        settings.setdefault("spark.python.daemon.module", spark_workers.__name__)
    settings.update(REQUIRED)
    extensions = [name for name in settings.get("spark.sql.extensions", "").split(",") if name]
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys([*extensions, DELTA_EXTENSION]))

    builder = SparkSession.Builder().appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if submitted:
        _silence_interrupts()
    spark: SparkSession = builder.getOrCreate()
    if submitted:
        _handle_interrupts()
    else:
        # Spark treats a JVM started from Python as a shell, which prints warnings regardless of the
        # logging configuration.
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _handle_interrupts() -> None:
    """Raise KeyboardInterrupt on SIGINT. PySpark's handler, which a new session sets, first cancels jobs in the JVM."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _silence_interrupts() -> None:
    """Log no traceback for an interrupt, also while the session starts.

    The same interrupt has usually stopped the JVM already, and every thread that waits for its response would log one.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_interrupt)
    sys.unraisablehook = _note_interrupt
    from pyspark.accumulators import AccumulatorTCPServer

    AccumulatorTCPServer.handle_error = _report_error  # type: ignore[assignment, method-assign]


def _note_interrupt(ignored: sys.UnraisableHookArgs) -> None:
    """Print an exception that Python ignores; but keep an interrupt, so that the job reports it."""
    if isinstance(ignored.exc_value, KeyboardInterrupt):
        ignored_interrupts.append(ignored.exc_value)
    else:
        sys.__unraisablehook__(ignored)


def _report_error(server: socketserver.BaseServer, request: Any, client_address: Any) -> None:
    """Print an error of the server of PySpark's accumulators, unless the JVM has ended and closed the connection."""
    if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
        socketserver.BaseServer.handle_error(server, request, client_address)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    """Return whether a log record is not about an interrupt; a filter that drops records of interrupts.

    PySpark logs an interrupt in every thread that waits for the JVM, and raises it as well. Py4J does the same if an
    interrupt has ended the JVM.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, KeyboardInterrupt) and type(error).__name__ != "Py4JNetworkError"


def _submitted_conf() -> dict[str, str]:
    """Return the configuration from spark-submit; empty if spark-submit has not started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _prepare_jvm(settings: dict[str, str]) -> None:
    import pyspark

    spark_home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    runtime = runtimes.find_java()
    if runtime:
        os.environ["JAVA_HOME"] = str(runtimes.wrapper_java_home(runtime))
    ivy = jars_module.ivy_home()
    jars = jars_module.cached_delta_jars(pyspark.__version__, ivy) or jars_module.fetch_delta(
        spark_home, pyspark.__version__, ivy, os.environ
    )
    given = [settings["spark.jars"]] if settings.get("spark.jars") else []
    settings["spark.jars"] = ",".join([*given, *map(str, jars)])
    quiet = quote(str(conf_folder() / "log4j2.properties"))
    ours = f"-Dlog4j2.configurationFile=file:{quiet}"
    settings["spark.driver.extraJavaOptions"] = f"{ours} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
