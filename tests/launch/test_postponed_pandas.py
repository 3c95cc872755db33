"""Commands that run in this process do not import large packages that they do not need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from purgatory_udf.common.installation import ROOT

_WITH_PANDAS_LATER = """
import sys
import pyarrow as pa
from purgatory_udf.launch.backend_choice import postpone_pandas
postpone_pandas()
assert pa.array([1.5, None]).null_count == 1 and "pandas" not in sys.modules
import pandas as pd
assert pa.array(pd.Series([1.5, float("nan")])).null_count == 1
assert pa.array(pd.Series([pd.Timestamp(0), pd.NaT])).null_count == 1
assert pa.table({"a": [1, None]}).to_pandas()["a"].isna().tolist() == [False, True]
"""

_IMPORT = """
import sys
from purgatory_udf.launch.__main__ import main
assert main(["ingest", *sys.argv[1:]], enter_environment=False) == 0
assert not sys.modules.keys() & {"pandas", "rich", "yaml"}
"""


def test_arrow_imports_pandas_when_it_is_needed() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", _WITH_PANDAS_LATER], cwd=ROOT, check=True)


def test_an_import_needs_few_packages(tmp_path: Path) -> None:
    arguments = ["--from", "jsonl", "conf/sample/trace.jsonl", "--out", str(tmp_path / "out")]
    subprocess.run([sys.executable, "-c", _IMPORT, *arguments], cwd=ROOT, check=True)
