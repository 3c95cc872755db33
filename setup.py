"""Build of the wheel: `jobs/` and `conf/` become parts of the package, as `purgatory_udf.common.installation` expects.

A top-level package `jobs` in site-packages could conflict with another. Everything else is in pyproject.toml.
"""

from tempfile import mkdtemp

from setuptools import find_packages, setup

FOLDERS = {"purgatory_udf.jobs": "jobs", "purgatory_udf.conf": "conf"}

setup(
    packages=[*find_packages(include=["purgatory_udf*"]), *FOLDERS],
    package_dir=FOLDERS,
    package_data={"": ["py.typed", "**/*.sql"], "purgatory_udf.conf": ["**/*"]},
    # Not `build/` in the tree: files of an earlier build there would get into the wheel.
    options={"build": {"build_base": mkdtemp()}},
)
