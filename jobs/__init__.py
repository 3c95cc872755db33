"""The commands of `spark-submit.sh`, one per module: options, checks, and a call into the package."""
